// Package mcp serves the tools of a caller's profile over the Model Context
// Protocol, on stdio and as streamable HTTP. It decodes requests, calls the
// engine and encodes what comes back; it decides nothing about who may call
// what.
//
// One MCP session is one session of the engine: its files and background
// commands stay from call to call, and its sandbox is removed at its end.
// Whatever ends a call for the client (a cancellation, the end of its session,
// a stream that is lost for good) ends the call's context, which kills what
// runs.
//
// A Server starts one goroutine for each session, which lives until the
// session's sandbox is removed, and some for each call, which end with it.
// Close waits for all of them. Revisions of the protocol without sessions
// (2026-07-28 and later) are not spoken: clients that know them fall back.
package mcp
