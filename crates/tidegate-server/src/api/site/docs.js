// Draws /openapi.json: operations by tag, their parameters, bodies and answers, and a form to try each.
// Everything is written as text, never as markup. The key lives in sessionStorage, that is, in this tab.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete"];
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
    add(box, table);
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
  add(table, add(make("tr"), make("th", "parameter"), make("th", "in"), make("th", "type"), make("th", "")));
  for (const one of parameters) {
    const name = make("td", one.name, one.required ? { class: "needed" } : {});
    add(table, add(make("tr"), name, make("td", one.in), make("td", typeOf(one.schema)), add(make("td"), prose(one.description))));
  }
  return table;
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
    const details = add(make("details"), make("summary", `${status}  ${resolved.description || ""}`));
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
  const fields = parameters.filter((one) => one.in !== "header" || one.name === "Last-Event-ID");
  const inputs = fields.map((one) => {
    const input = make("input", null, { placeholder: one.name });
    add(form, add(make("label"), `${one.name} `, input));
    return [one, input];
  });
  const example = exampleOf(operation);
  const body = example && make("textarea", example.text, { spellcheck: "false" });
  const answer = make("pre");
  answer.hidden = true;
  add(form, body, add(make("p"), make("button", "Send")), answer);
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

function operationView(path, item, method) {
  const operation = item[method];
  const details = make("details", null, { id: operation.operationId });
  const summary = add(make("summary"), make("span", method.toUpperCase(), { class: "method" }), make("span", path, { class: "path" }), `  ${operation.summary || ""}`);
  add(details, summary);
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const parameters = parametersOf(item, operation);
    add(details, prose(operation.description), parameterTable(parameters), bodyView(operation.requestBody), answersView(operation.responses));
    add(details, make("h4", "Try it"), tryForm(path, method, operation, parameters));
  });
  return details;
}

function draw() {
  document.getElementById("about").replaceWith(prose(`${api.info.summary || ""} ${api.info.description || ""}`));
  const toc = document.getElementById("toc");
  const box = document.getElementById("operations");
  for (const tag of api.tags || []) {
    add(toc, make("a", tag.name, { href: `#tag-${tag.name}` }));
    add(box, make("h2", tag.name, { id: `tag-${tag.name}` }), prose(tag.description));
    for (const [path, item] of Object.entries(api.paths)) {
      for (const method of METHODS) {
        if (item[method] && (item[method].tags || [])[0] === tag.name) add(box, operationView(path, item, method));
      }
    }
  }
  const named = document.getElementById(location.hash.slice(1));
  if (named) named.open = true;
}

async function start() {
  for (const name of ["key", "project"]) {
    const input = document.getElementById(name);
    input.value = sessionStorage.getItem(name) || "";
    input.addEventListener("input", () => sessionStorage.setItem(name, input.value));
  }
  api = await (await fetch("/openapi.json")).json();
  draw();
}

start().catch((error) => { document.getElementById("about").textContent = `The description can not be read: ${error}`; });
