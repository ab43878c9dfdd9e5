package netpolicy

import "time"

// Connection is what is audited of one tunnel or one request of plain HTTP,
// after it ended. It holds no header, no query and no body.
type Connection struct {
	// Time is when it began.
	Time    time.Time `json:"time"`
	Session string    `json:"session"`
	// Host and Port are what was asked for; empty where that was not understood.
	Host string `json:"host,omitempty"`
	Port int    `json:"port,omitempty"`
	// Protocol is that of the rule; empty where none allowed it.
	Protocol string `json:"protocol,omitempty"`
	// Method is CONNECT for tunnels, SOCKS5 ones too.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Address is what was connected to.
	Address string `json:"address,omitempty"`
	// Allowed says that rules, addresses and what was spoken were in order. Reason
	// is one line: the rule, why it was refused, or what ended it early.
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason"`
	// Sent and Received are bytes: of the tunnel, or of the bodies.
	Sent     int64         `json:"sent"`
	Received int64         `json:"received"`
	Duration time.Duration `json:"duration"` // nanoseconds
}

// State is a session at one moment.
type State struct {
	// Open is how many connections there are from inside.
	Open int `json:"open"`
	// Allowed and Refused count what has ended; see Connection.
	Allowed int64 `json:"allowed"`
	Refused int64 `json:"refused"`
	// Sent and Received are bytes on connections to the outside.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
	// Recent are the last that ended, the newest at the end.
	Recent []Connection `json:"recent"`
}

// ring keeps the last connections. Its zero value is empty.
type ring struct {
	kept []Connection
	next int // where the oldest is, once it is full
}

func (r *ring) add(c Connection) {
	if len(r.kept) < keptRecent {
		r.kept = append(r.kept, c)
		return
	}
	r.kept[r.next] = c
	r.next = (r.next + 1) % keptRecent
}

// list is a copy, the oldest first.
func (r *ring) list() []Connection {
	all := make([]Connection, 0, len(r.kept))
	all = append(all, r.kept[r.next:]...)
	return append(all, r.kept[:r.next]...)
}
