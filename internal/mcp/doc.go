// Package mcp serves the tools of a caller's profile over the Model Context Protocol, on stdio and
// as streamable HTTP. It decodes requests, calls the engine and encodes results. Rules belong to
// the engine.
//
// One MCP session is one session of the engine: files and background commands stay from call to
// call, and its sandbox is removed at its end. When a call ends for the client (by cancellation,
// the end of its session, or a stream that is not resumed), the call's context ends, and its
// command is killed.
//
// A Server starts one goroutine for each session, which ends when the session's sandbox is removed,
// and some for each call, which end with the call. Close waits for all of them. Revisions of the
// protocol without sessions (2026-07-28 and later) are not supported; clients that know them fall
// back.
package mcp
