// GitHub's own parser of workflows, on the files that are named. Prints one line for each mistake.
// Run in a directory that has @actions/workflow-parser.
import { readFileSync } from "node:fs";
import { createRequire, register } from "node:module";
import { pathToFileURL } from "node:url";

// The parser imports its schema without saying that it is JSON, as bundlers allow.
register(
  "data:text/javascript," +
    encodeURIComponent(`
      export async function resolve(name, context, next) {
        const found = await next(name, context);
        return name.endsWith(".json") ? { ...found, importAttributes: { type: "json" } } : found;
      }`),
);

const installed = createRequire(pathToFileURL(process.cwd() + "/"));
const path = installed.resolve.paths("@actions/workflow-parser")[0] + "/@actions/workflow-parser/dist/index.js";
const { NoOperationTraceWriter, convertWorkflowTemplate, parseWorkflow } = await import(pathToFileURL(path));

for (const name of process.argv.slice(2)) {
  const parsed = parseWorkflow({ name, content: readFileSync(name, "utf8") }, new NoOperationTraceWriter());
  const mistakes = parsed.context.errors.getErrors();
  const template = mistakes.length ? undefined : await convertWorkflowTemplate(parsed.context, parsed.value);
  for (const mistake of [...mistakes, ...(template?.errors ?? [])]) {
    console.log(`${name}: ${mistake.message ?? mistake.Message}`);
  }
}
