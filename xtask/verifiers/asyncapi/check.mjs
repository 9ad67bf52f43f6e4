// Reads an AsyncAPI document from the named file with the public parser; a finding that is an error fails.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { Parser, DiagnosticSeverity } = createRequire(import.meta.url)("@asyncapi/parser");

const { document, diagnostics } = await new Parser().parse(readFileSync(process.argv[2], "utf8"));
const wrong = diagnostics.filter((one) => one.severity <= DiagnosticSeverity.Warning);
for (const one of wrong) console.error(`${one.path.join(".")}: ${one.message}`);
const channels = document ? document.channels().all().length : 0;
console.log(JSON.stringify({ channels }));
process.exit(document && !wrong.length ? 0 : 1);
