package netpolicy

import "time"

// Connection is the audit record of an ended tunnel or plain HTTP request. It contains no header,
// query or body.
type Connection struct {
	// Time is the start.
	Time    time.Time `json:"time"`
	Session string    `json:"session"`
	// Host and Port are what the client requested, or empty if the request was invalid.
	Host string `json:"host,omitempty"`
	Port int    `json:"port,omitempty"`
	// Protocol is the rule's, or empty if no rule allowed it.
	Protocol string `json:"protocol,omitempty"`
	// Method is CONNECT for all tunnels, including those of SOCKS5.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Address is the address that the gateway connected to.
	Address string `json:"address,omitempty"`
	// Allowed reports whether rules, addresses and protocol permitted it. Reason is one line: the
	// rule, why it was refused, or what ended it early.
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason"`
	// Sent and Received are bytes of the tunnel, or of the bodies.
	Sent     int64         `json:"sent"`
	Received int64         `json:"received"`
	Duration time.Duration `json:"duration"` // in nanoseconds
}

// State is a snapshot of a session.
type State struct {
	// Open is the number of connections from the sandbox.
	Open int `json:"open"`
	// Allowed and Refused count ended connections; see Connection.
	Allowed int64 `json:"allowed"`
	Refused int64 `json:"refused"`
	// Sent and Received are bytes on connections to servers.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
	// Recent are the last ended connections, newest last.
	Recent []Connection `json:"recent"`
}

// ring keeps the last connections. The zero value is empty.
type ring struct {
	kept []Connection
	next int // index of the oldest, once full
}

func (r *ring) add(c Connection) {
	if len(r.kept) < keptRecent {
		r.kept = append(r.kept, c)
		return
	}
	r.kept[r.next] = c
	r.next = (r.next + 1) % keptRecent
}

// list returns a copy, oldest first.
func (r *ring) list() []Connection {
	all := make([]Connection, 0, len(r.kept))
	all = append(all, r.kept[r.next:]...)
	return append(all, r.kept[:r.next]...)
}
