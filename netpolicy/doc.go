// Package netpolicy decides on and carries the network traffic of sandboxes. A sandbox has only a
// loopback interface. Its guest runs a proxy there and forwards each connection to the host as a
// byte stream. A [Gateway] speaks HTTP CONNECT, plain HTTP or SOCKS5 on it.
//
// [Rules.Within] decides without side effects, before any name is resolved. The gateway then
// resolves the name itself, applies the rules for addresses ([Rules.Resolved]), refuses addresses
// that are not public ([Guard]), connects to the checked address, and enforces the rule's protocol
// on the tunnel. Every connection is audited once, with the reason.
//
// Everything that a sandbox sends is untrusted and limited in size and time. The package does not
// depend on leases, callers or tools.
package netpolicy
