// Runs a whole session with the client that openapi-typescript and openapi-fetch make from /openapi.json: readiness, a
// workspace, a lease, files, a command as JSON and as a stream, a background command, a tool call, and errors. Nothing is
// cast; tsc checks the types. It exits with 1 and one line for each expectation that is not met.
//
//     node api.js URL TOKEN
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Event = components["schemas"]["Event"];

const [url, token] = process.argv.slice(2);
const api = createClient<paths, "application/json" | "application/problem+json">({
  baseUrl: url ?? "", headers: { Authorization: `Bearer ${token}` },
});
let failures = 0;

function expect(ok: boolean, what: string): void {
  if (ok) return;
  failures++;
  console.log(`not met: ${what}`);
}

/** Returns the data of an answer, or throws its problem. */
function must<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) throw new Error(`${answer.response.status} ${JSON.stringify(answer.error)}`);
  return answer.data;
}

/** Yields the events of a command's stream. */
async function* events(body: ReadableStream<Uint8Array> | null): AsyncGenerator<Event> {
  if (body === null) return;
  let text = "";
  const decoder = new TextDecoder();
  for (const reader = body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const data = /^data: (.*)$/m.exec(text.slice(0, end))?.[1];
      text = text.slice(end + 2);
      if (data === undefined) continue; // a heartbeat
      const event: Event = JSON.parse(data);
      yield event;
    }
  }
}

async function run(id: string): Promise<void> {
  const params = { path: { id } };
  const result = must(await api.POST("/v1/sandboxes/{id}/exec", {
    params, body: { command: "cat /workspace/note; echo error >&2; exit 3" },
  }));
  expect(result.ending === "exited" && result.exit_code === 3 && result.stdout === "written\n", `exec: ${result.stdout}`);
  const types: string[] = [];
  let output = "";
  const stream = await api.POST("/v1/sandboxes/{id}/exec", {
    params, body: { command: "echo one; sleep 0.2; echo two" }, headers: { Accept: "text/event-stream" }, parseAs: "stream",
  });
  for await (const event of events(must(stream))) {
    types.push(event.type);
    if (event.type === "stdout") output += event.data ?? "";
    if (event.type === "end") expect(event.result?.exit_code === 0, "the end of the stream has the result");
  }
  expect(types[0] === "started" && types.at(-1) === "end" && output === "one\ntwo\n", `stream: ${types} ${output}`);
}

async function background(id: string): Promise<void> {
  const shell = must(await api.POST("/v1/sandboxes/{id}/shells", {
    params: { path: { id } }, body: { command: "echo begun; sleep 1000" },
  }));
  const output = must(await api.GET("/v1/shells/{id}/output", {
    params: { path: { id: shell.id }, query: { stream: "stdout", offset: 0, wait_ms: 10000 } },
  }));
  expect(output.data === "begun\n" && output.next_offset === 6 && !output.eof, `output of a shell: ${output.data}`);
  const ended = must(await api.DELETE("/v1/shells/{id}", { params: { path: { id: shell.id }, query: { grace_ms: 0 } } }));
  expect(ended.state === "ended", `state of a killed shell: ${ended.state}`);
}

async function files(id: string): Promise<void> {
  const query = { path: "/workspace/note" };
  must(await api.PUT("/v1/sandboxes/{id}/files", {
    params: { path: { id }, query }, body: "written\n", bodySerializer: (body) => body,
    headers: { "Content-Type": "application/octet-stream" },
  }));
  const text: string = must(await api.GET("/v1/sandboxes/{id}/files", { params: { path: { id }, query }, parseAs: "text" }));
  expect(text === "written\n", `content of a file: ${text}`);
  const list = must(await api.GET("/v1/sandboxes/{id}/files", {
    params: { path: { id }, query: { path: "/workspace", list: true } },
  }));
  expect("items" in list && list.items.some((file) => file.name === "note" && file.size === 8), "the file is listed");
}

async function errors(): Promise<void> {
  const missing = await api.GET("/v1/sandboxes/{id}", { params: { path: { id: "nobody" } } });
  expect(missing.error?.code === "not_found" && missing.error.status === 404, `an unknown id: ${missing.error?.detail}`);
  const refused = await api.GET("/v1/sandboxes", { headers: { Authorization: "Bearer wrong" } });
  expect(refused.error?.code === "unauthenticated", `a wrong token: ${refused.error?.code}`);
}

for (let left = 600; left > 0; left--) {
  const { data, error } = await api.GET("/readyz");
  if (data?.status === "ready" && data.templates.some((template) => template.default)) break;
  if (left === 1) expect(false, `the service is ready: ${error?.detail}`);
  await new Promise((resolve) => setTimeout(resolve, 100));
}
const version = must(await api.GET("/v1/version"));
expect(version.runtime === "oci", `runtime: ${version.runtime}`);
const workspace = must(await api.POST("/v1/workspaces", { body: { name: "typescript" } }));
const sandbox = must(await api.POST("/v1/sandboxes", { body: { workspace: workspace.name, when_empty: "wait" } }));
expect(sandbox.state === "leased" && !Number.isNaN(Date.parse(sandbox.expires_at)), `state: ${sandbox.state}`);
await files(sandbox.id);
await run(sandbox.id);
await background(sandbox.id);
const tools = must(await api.GET("/v1/tools"));
expect(tools.items.some((tool) => tool.name === "system.bash"), "system.bash is listed");
const call = must(await api.POST("/v1/tools/{name}/call", {
  params: { path: { name: "system.bash" } }, body: { input: { command: "echo called" }, sandbox: sandbox.id },
}));
expect(call.ending === "exited" && (call.text ?? "").includes("called"), `tool call: ${call.text}`);
await errors();
const gone = await api.DELETE("/v1/sandboxes/{id}", { params: { path: { id: sandbox.id } } });
expect(gone.response.status === 204, `removal: ${gone.response.status}`);
process.exit(failures === 0 ? 0 : 1);
