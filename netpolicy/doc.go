// Package netpolicy decides and carries what sandboxes say to the world outside.
// A sandbox has no network interface but loopback: its guest hands each
// connection that a command makes to the proxy there to the host as a byte
// stream, and a [Gateway] speaks HTTP CONNECT, plain HTTP or SOCKS5 on it.
//
// The decision ([Rules.Decide]) is pure, and is taken before any name is
// resolved. Then the gateway resolves by itself, refuses addresses that are not
// public ([Guard]), connects to the very address that it looked at, and holds
// the tunnel to the rule's protocol. Every connection is audited, once, with
// the reason.
//
// Everything that a sandbox sends is hostile and bounded in size and time. The
// package knows no leases, callers or tools.
package netpolicy
