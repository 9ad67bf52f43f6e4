// A receiver that checks every delivery with the public JavaScript package, unchanged.
//
// Prints {"port": n}, reads the signing secret from standard input, then prints one JSON line per request: what the
// package said about the delivery as it came, about the same delivery with one byte changed, and under another secret.

import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { Webhook } from "standardwebhooks";

const OTHER_SECRET = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
let secret;

function refused(key, body, headers) {
  try {
    new Webhook(key).verify(body, headers);
  } catch {
    return true;
  }
  return false;
}

function judge(body, headers) {
  const report = { body };
  try {
    new Webhook(secret).verify(body, headers);
    report.accepted = true;
  } catch (error) {
    report.accepted = false;
    report.error = String(error);
  }
  const tampered = body.slice(0, -1) + (body.endsWith(" ") ? "\n" : " ");
  report.refused_tampered = refused(secret, tampered, headers);
  report.refused_other_secret = refused(OTHER_SECRET, body, headers);
  return report;
}

const server = createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const report = judge(Buffer.concat(chunks).toString("utf8"), request.headers);
    console.log(JSON.stringify(report));
    response.writeHead(report.accepted ? 200 : 400, { "content-length": "0" });
    response.end();
  });
});

server.listen(0, "127.0.0.1", () => {
  console.log(JSON.stringify({ port: server.address().port }));
});
createInterface({ input: process.stdin }).once("line", (line) => {
  secret = line.trim();
});
