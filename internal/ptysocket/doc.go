// Package ptysocket connects a terminal in a sandbox to a client over a WebSocket.
//
// Binary messages carry output and typed bytes, text messages carry v1.TerminalMessage. Slow
// clients delay only their own output, which the guest buffers. Typed bytes and control messages
// are bounded; a client that exceeds a bound is disconnected with an error.
package ptysocket
