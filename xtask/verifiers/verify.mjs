// A receiver that checks every delivery with the public JavaScript package, unchanged; or, when what it is given is a
// public key (whpk_…), which the package does not know, with Node's own Ed25519.
//
// Prints {"port": n}, reads the signing secret or public key from standard input, then prints one JSON line per request: what the
// package said about the delivery as it came, about the same delivery with one byte changed, and under another secret.

import { createPublicKey, verify } from "node:crypto";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { Webhook } from "standardwebhooks";

const OTHER_SECRET = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const OTHER_KEY = "whpk_PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";
let secret;

function check(key, body, headers) {
  if (!key.startsWith("whpk_")) {
    new Webhook(key).verify(body, headers);
    return;
  }
  const x = Buffer.from(key.slice("whpk_".length), "base64").toString("base64url");
  const publicKey = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  const signed = Buffer.from(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`);
  const entries = headers["webhook-signature"].split(" ").map((entry) => entry.split(","));
  const fits = ([version, signature]) =>
    version === "v1a" && verify(null, signed, publicKey, Buffer.from(signature, "base64"));
  if (!entries.some(fits)) throw new Error("no v1a signature fits");
}

function refused(key, body, headers) {
  try {
    check(key, body, headers);
  } catch {
    return true;
  }
  return false;
}

function judge(body, headers) {
  const report = { body };
  try {
    check(secret, body, headers);
    report.accepted = true;
  } catch (error) {
    report.accepted = false;
    report.error = String(error);
  }
  const tampered = body.slice(0, -1) + (body.endsWith(" ") ? "\n" : " ");
  report.refused_tampered = refused(secret, tampered, headers);
  report.refused_other_secret = refused(secret.startsWith("whpk_") ? OTHER_KEY : OTHER_SECRET, body, headers);
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
