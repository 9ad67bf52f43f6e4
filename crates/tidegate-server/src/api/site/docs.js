// Draws /openapi.json: operations by tag, their parameters, bodies and answers, a command line and a form to try each.
// Everything is written as text, never as markup. The key lives in sessionStorage, that is, in this tab.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete"];
// The project stands above, for all; other headers are for programs.
const HEADERS_TRIED = ["last-event-id", "idempotency-key"];
let api;

function make(name, text, attributes) {
  const node = document.createElement(name);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  return node;
}

function add(parent, ...children) {
  for (const child of children) if (child) parent.append(child);
  return parent;
}

// Our descriptions mark code with backquotes.
function prose(text) {
  const node = make("p");
  String(text || "").split("`").forEach((part, n) => node.append(n % 2 ? make("code", part) : part));
  return node;
}

function plain(text) {
  return String(text || "").replaceAll("`", "");
}

function follow(value) {
  while (value && value.$ref) value = value.$ref.slice(2).split("/").reduce((at, step) => at[step], api);
  return value;
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((item) => JSON.stringify(item)).join(" | ");
  const choices = schema.oneOf || schema.anyOf || schema.allOf;
  if (choices) return choices.map(typeOf).join(schema.allOf ? " & " : " | ");
  if (schema.type === "array") return `${typeOf(schema.items) || "any"}[]`;
  return [].concat(schema.type || "any").join(" | ") + (schema.format ? ` (${schema.format})` : "");
}

// The members of a schema; those that are objects themselves open on demand, so that cycles do no harm.
function schemaView(schema) {
  const resolved = follow(schema);
  const box = make("div");
  if (!resolved) return box;
  if (resolved.description) add(box, prose(resolved.description));
  for (const choice of resolved.oneOf || resolved.anyOf || resolved.allOf || []) add(box, opener(typeOf(choice), choice));
  if (resolved.type === "array") add(box, opener(`each: ${typeOf(resolved.items)}`, resolved.items));
  if (resolved.properties) {
    const table = make("table");
    for (const [name, member] of Object.entries(resolved.properties)) {
      const needed = (resolved.required || []).includes(name);
      const about = make("td");
      add(about, prose((follow(member) || {}).description));
      const inner = follow(member);
      if (inner && (inner.properties || inner.oneOf || inner.items)) add(about, opener("more", member));
      add(table, add(make("tr"), make("td", name, needed ? { class: "needed" } : {}), make("td", typeOf(member)), about));
    }
    add(box, add(make("div", null, { class: "scroll" }), table));
  }
  return box;
}

function opener(title, schema) {
  const details = add(make("details"), make("summary", title, { class: "soft" }));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) add(details, schemaView(schema));
  });
  return details;
}

function parametersOf(item, operation) {
  return [...(item.parameters || []), ...(operation.parameters || [])].map(follow);
}

function parameterTable(parameters) {
  if (!parameters.length) return null;
  const table = make("table");
  add(table, add(make("tr"), make("th", "name"), make("th", "in"), make("th", "type"), make("th", "")));
  for (const one of parameters) {
    const name = make("td", one.name, one.required ? { class: "needed" } : {});
    add(table, add(make("tr"), name, make("td", one.in), make("td", typeOf(one.schema)), add(make("td"), prose(one.description))));
  }
  return add(make("div"), make("h4", "Parameters"), add(make("div", null, { class: "scroll" }), table));
}

function bodyView(body) {
  const resolved = follow(body);
  if (!resolved) return null;
  const box = add(make("div"), make("h4", "Body"), prose(resolved.description));
  for (const [kind, content] of Object.entries(resolved.content || {})) add(box, opener(`${kind}: ${typeOf(content.schema)}`, content.schema));
  return box;
}

function answersView(responses) {
  const box = add(make("div"), make("h4", "Answers"));
  for (const [status, response] of Object.entries(responses)) {
    const resolved = follow(response);
    const shade = status < "300" ? "status good" : status >= "400" ? "status bad" : "status";
    const title = add(make("summary"), make("span", status, { class: shade }), resolved.description || "");
    const details = add(make("details"), title);
    for (const [kind, content] of Object.entries(resolved.content || {})) add(details, opener(`${kind}: ${typeOf(content.schema)}`, content.schema));
    add(box, details);
  }
  return box;
}

function exampleOf(operation) {
  const content = Object.entries((follow(operation.requestBody) || {}).content || {})[0];
  if (!content) return null;
  const example = content[1].example || (follow(content[1].schema) || {}).example;
  return { kind: content[0], text: example ? JSON.stringify(example, null, 2) : "{}" };
}

function tryForm(path, method, operation, parameters) {
  const form = make("form");
  const fields = parameters.filter((one) => one.in !== "header" || HEADERS_TRIED.includes(one.name.toLowerCase()));
  const row = make("div", null, { class: "fields" });
  const inputs = fields.map((one) => {
    const input = make("input", null, { placeholder: typeOf(one.schema), autocomplete: "off" });
    if (one.in === "path") input.required = true;
    add(row, add(make("label"), one.name, input));
    return [one, input];
  });
  const example = exampleOf(operation);
  const body = example && make("textarea", example.text, { spellcheck: "false" });
  const answer = make("pre");
  answer.hidden = true;
  const labelled = body && add(make("label"), `body, ${example.kind}`, body);
  add(form, fields.length ? row : null, labelled, add(make("p"), make("button", "Send")), answer);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(path, method, inputs, body && { kind: example.kind, text: body.value }, answer);
  });
  return form;
}

function request(path, method, inputs, body) {
  const query = new URLSearchParams();
  const headers = {};
  let address = path;
  for (const [one, input] of inputs) {
    if (one.in === "path") address = address.replace(`{${one.name}}`, encodeURIComponent(input.value));
    else if (input.value && one.in === "query") query.set(one.name, input.value);
    else if (input.value) headers[one.name] = input.value;
  }
  const key = document.getElementById("key").value;
  const project = document.getElementById("project").value;
  if (key) headers.authorization = `Bearer ${key}`;
  if (project) headers["x-tidegate-project"] = project;
  if (body) headers["content-type"] = body.kind;
  const text = query.toString();
  return [address + (text ? `?${text}` : ""), { method: method.toUpperCase(), headers, body: body ? body.text : undefined }];
}

async function send(path, method, inputs, body, answer) {
  const [address, options] = request(path, method, inputs, body);
  answer.hidden = false;
  answer.textContent = `${options.method} ${address}\n`;
  try {
    const response = await fetch(address, options);
    answer.textContent += `${response.status} ${response.statusText}\n\n`;
    if ((response.headers.get("content-type") || "").startsWith("text/event-stream")) return await read(response, answer);
    const text = await response.text();
    try {
      answer.textContent += JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      answer.textContent += text;
    }
  } catch (error) {
    answer.textContent += String(error);
  }
}

// A stream does not end: it is shown as it comes, its last part only.
async function read(response, answer) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    answer.textContent = (answer.textContent + value).slice(-20000);
    answer.scrollTop = answer.scrollHeight;
  }
}

// The same request for a terminal. Names in braces are to be filled in.
function commandOf(path, method, operation) {
  const lines = [`curl "${location.origin}${path}"`];
  if (method !== "get" && !(method === "post" && operation.requestBody)) lines[0] = `curl -X ${method.toUpperCase()} "${location.origin}${path}"`;
  if ((operation.security || api.security || []).length) lines.push('-H "authorization: Bearer $TIDEGATE_KEY"');
  const example = exampleOf(operation);
  if (example) {
    lines.push(`-H "content-type: ${example.kind}"`);
    lines.push(`-d '${example.text.replaceAll("'", "'\\''")}'`);
  }
  return lines.join(" \\\n  ");
}

function sampleView(text) {
  const copy = make("button", "Copy", { type: "button", class: "plain" });
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return add(make("div", null, { class: "sample" }), make("pre", text), copy);
}

function methodTag(word) {
  return make("span", word === "delete" ? "DEL" : word.toUpperCase(), { class: `method ${word}` });
}

// An operation or a webhook: closed at first, drawn when it is opened.
function card(id, word, path, about, fill) {
  const details = make("details", null, { id, class: "operation" });
  add(details, add(make("summary"), methodTag(word), make("span", path, { class: "path" }), make("span", plain(about), { class: "about" })));
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    if (details.childElementCount === 1) add(details, fill(make("div", null, { class: "inside" })));
    if (location.hash !== `#${id}`) history.replaceState(null, "", `#${id}`);
    mark();
  });
  return details;
}

function operationView(path, item, method) {
  const operation = item[method];
  return card(operation.operationId, method, path, operation.summary, (box) => {
    const parameters = parametersOf(item, operation);
    add(box, prose(operation.description), sampleView(commandOf(path, method, operation)));
    add(box, parameterTable(parameters), bodyView(operation.requestBody), answersView(operation.responses));
    return add(box, make("h4", "Try it"), tryForm(path, method, operation, parameters));
  });
}

// What the server sends, and what a receiver answers.
function webhookView(name, item) {
  const operation = item.post;
  return card(`webhook-${name}`, "event", name, operation.summary, (box) => {
    add(box, prose(operation.description), parameterTable(parametersOf(item, operation)));
    return add(box, bodyView(operation.requestBody), answersView(operation.responses));
  });
}

// One group of cards, and of entries beside them.
function group(name, about, cards) {
  const id = `tag-${name.replaceAll(" ", "-")}`;
  add(document.getElementById("operations"), make("h2", name, { id }), prose(about), ...cards);
  const section = add(make("section"), add(make("h3"), make("a", name, { href: `#${id}`, class: "soft" })));
  for (const one of cards) {
    const [word, path, title] = [...one.querySelector("summary").children];
    add(section, add(make("a", null, { href: `#${one.id}`, class: "entry", title: path.textContent }), word.cloneNode(true), title.textContent || path.textContent));
  }
  add(document.getElementById("toc"), section);
}

function draw() {
  document.getElementById("about").replaceChildren(api.info.summary || "");
  document.getElementById("caller").before(prose(api.info.description));
  const webhooks = Object.entries(api.webhooks || {}).map(([name, item]) => webhookView(name, item));
  for (const tag of api.tags || []) {
    const cards = [];
    for (const [path, item] of Object.entries(api.paths)) {
      for (const method of METHODS) {
        if (item[method] && (item[method].tags || [])[0] === tag.name) cards.push(operationView(path, item, method));
      }
    }
    group(tag.name, tag.description, cards);
    if (tag.name === "subscribers") group("webhooks", "What receivers get.", webhooks);
  }
}

// Opens what the address names.
function open() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!named) return;
  if (named.tagName === "DETAILS") named.open = true;
  named.scrollIntoView();
  mark();
}

function mark() {
  for (const entry of document.querySelectorAll("a.entry")) entry.classList.toggle("current", entry.hash === location.hash);
}

function filter(text) {
  const wanted = text.trim().toLowerCase();
  for (const section of document.querySelectorAll("#toc section")) {
    const entries = [...section.querySelectorAll("a.entry")];
    for (const entry of entries) entry.hidden = !`${entry.textContent} ${entry.title}`.toLowerCase().includes(wanted);
    section.hidden = entries.every((entry) => entry.hidden);
  }
}

async function start() {
  for (const name of ["key", "project"]) {
    const input = document.getElementById(name);
    input.value = sessionStorage.getItem(name) || "";
    input.addEventListener("input", () => sessionStorage.setItem(name, input.value));
  }
  document.getElementById("caller").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("filter").addEventListener("input", (event) => filter(event.target.value));
  api = await (await fetch("/openapi.json")).json();
  draw();
  open();
  addEventListener("hashchange", open);
}

start().catch((error) => { document.getElementById("about").textContent = `The description can not be read: ${error}`; });
