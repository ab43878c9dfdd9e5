// Uses the service as an agent does, with the official client: initialize, list, call, progress, cancel, unknown tool and
// reconnect. It exits with 1 and one line for each expectation that is not met.
//
//     node mcp.js http URL TOKEN
//     node mcp.js stdio PROGRAM [ARGUMENT…]
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import type { Transport } from "@modelcontextprotocol/sdk/shared/transport.js";
import { type CallToolResult, CallToolResultSchema, ErrorCode, McpError } from "@modelcontextprotocol/sdk/types.js";

const [kind, target, ...rest] = process.argv.slice(2);
let failures = 0;

function expect(ok: boolean, what: string): void {
  if (ok) return;
  failures++;
  console.log(`not met: ${what}`);
}

/** Errors that a client reports outside of its calls: connections that broke and answers without a request. */
const reported: string[] = [];

function transport(): Transport {
  if (target === undefined) throw new Error("usage: mcp.js http URL TOKEN | stdio PROGRAM [ARGUMENT…]");
  if (kind === "http") {
    return new StreamableHTTPClientTransport(new URL(target), {
      requestInit: { headers: { Authorization: `Bearer ${rest[0]}` } },
    });
  }
  return new StdioClientTransport({ command: target, args: rest, env: environment(), stderr: "inherit" });
}

function environment(): Record<string, string> {
  const out: Record<string, string> = {};
  for (const [name, value] of Object.entries(process.env)) if (value !== undefined) out[name] = value;
  return out;
}

async function connect(): Promise<Client> {
  const client = new Client({ name: "scenario", version: "1" });
  client.onerror = (error) => reported.push(error.message);
  await client.connect(transport());
  return client;
}

/** Closes the client, which reports the streams that it aborts. */
async function close(client: Client): Promise<void> {
  client.onerror = undefined;
  await client.close();
}

async function bash(client: Client, command: string, options = {}): Promise<CallToolResult> {
  const call = { name: "system_bash", arguments: { command } };
  return CallToolResultSchema.parse(await client.callTool(call, undefined, options));
}

function text(result: CallToolResult): string {
  return result.content.map((part) => (part.type === "text" ? part.text : "")).join("");
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function listAndCall(client: Client): Promise<void> {
  expect(client.getServerVersion()?.name === "orchestrator", "the server names itself");
  const { tools } = await client.listTools();
  expect(tools.some((tool) => tool.name === "system_bash"), `system_bash is among ${tools.length} tools`);
  const first = await bash(client, "echo one > /workspace/file; echo $((6*7))");
  expect(!first.isError && text(first).includes("42"), `a call returns its output: ${text(first)}`);
  const second = await bash(client, "cat /workspace/file");
  expect(text(second).includes("one"), `files stay from call to call: ${text(second)}`);
}

async function background(client: Client): Promise<void> {
  const started = await client.callTool({
    name: "system_bash", arguments: { command: "echo in the background", run_in_background: true },
  });
  const out = CallToolResultSchema.parse(started).structuredContent ?? {};
  const output = await client.callTool({
    name: "system_output", arguments: { shell_id: out["shell_id"], wait_ms: 10000 },
  });
  expect(text(CallToolResultSchema.parse(output)).includes("in the background"), "a background command's output is read");
}

async function progress(client: Client): Promise<void> {
  const values: number[] = [];
  const result = await bash(client, "for i in 1 2 3; do echo line $i; sleep 0.4; done", {
    onprogress: (update: { progress: number }) => values.push(update.progress),
  });
  expect(!result.isError && values.length > 1, `progress is reported: ${values}`);
  expect(values.every((value, i) => i === 0 || value > (values[i - 1] ?? 0)), `progress increases: ${values}`);
}

async function cancel(client: Client): Promise<void> {
  const stop = new AbortController();
  const call = bash(client, "echo begun; sleep 1000", { signal: stop.signal, onprogress: () => stop.abort("enough") });
  const error: unknown = await call.then(() => undefined, (reason) => reason);
  expect(error !== undefined, "a cancelled call fails");
  for (let left = 50; left > 0; left--) {
    const found = await bash(client, "pgrep -x sleep >/dev/null || echo no process");
    if (text(found).includes("no process")) return;
    await pause(100);
  }
  expect(false, "the command of a cancelled call is killed");
}

async function unknownTool(client: Client): Promise<void> {
  const error: unknown = await client.callTool({ name: "no_such_tool", arguments: {} }).then(() => undefined, (e) => e);
  expect(error instanceof McpError && error.code === ErrorCode.InvalidParams, `an unknown tool is error -32602: ${error}`);
}

const client = await connect();
await listAndCall(client);
await background(client);
await progress(client);
await cancel(client);
await unknownTool(client);
await pause(3500); // the client reconnects a second after a stream that ended without a result
expect(!(await bash(client, "true")).isError, "the session still works");
await close(client);

const again = await connect();
expect(text(await bash(again, "ls /workspace")).trim() !== "file", "a new session has its own sandbox");
await close(again);
expect(reported.length === 0, `the client reports no errors: ${reported.join(" | ")}`);
process.exit(failures === 0 ? 0 : 1);
