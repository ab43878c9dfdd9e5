package netpolicy

import "time"

// Defaults of Limits.
const (
	DefaultConnections = 512
	DefaultHeaderTime  = 10 * time.Second
	DefaultDialTime    = 10 * time.Second
	DefaultIdleTime    = 5 * time.Minute
	DefaultMaxTime     = 4 * time.Hour
)

// Fixed limits.
const (
	// maxHeader limits the head of a request and of an answer, in bytes.
	maxHeader = 32 << 10
	// filesPerConnection is the number of descriptors per connection of all sessions together. A
	// connection needs two; the others are reserved for the service's clients. A session can always
	// have freeShare connections.
	filesPerConnection = 8
	freeShare          = 16
	// maxRefused is how many connections over the limit get an error. More are closed without an
	// answer.
	maxRefused = 64
	// lookupTime limits the time for all name servers together.
	lookupTime = 5 * time.Second
	// maxAddresses limits the checked addresses of a name.
	maxAddresses = 16
	// keptRecent is how many connections a State lists.
	keptRecent = 100
	// acceptsWaiting is how many accepts a session keeps pending.
	acceptsWaiting = 4
	// lingerTime and lingerBytes limit reading after the last write to a client, which prevents a
	// reset from discarding that write.
	lingerTime  = time.Second
	lingerBytes = 256 << 10
)

// Limits limits the connections of one session. Zero fields take their defaults.
type Limits struct {
	// Connections limits concurrent connections.
	Connections int
	// HeaderTime limits a client's request, SOCKS5 handshake or ClientHello. DialTime limits
	// connecting, without name resolution.
	HeaderTime, DialTime time.Duration
	// IdleTime ends a connection without traffic in either direction.
	IdleTime time.Duration
	// MaxTime ends any tunnel or request. Negative means never.
	MaxTime time.Duration
	// Bytes limits the total traffic of a session in both directions. Zero means unlimited.
	Bytes int64
}

func (l Limits) withDefaults() Limits {
	if l.Connections <= 0 {
		l.Connections = DefaultConnections
	}
	if l.HeaderTime <= 0 {
		l.HeaderTime = DefaultHeaderTime
	}
	if l.DialTime <= 0 {
		l.DialTime = DefaultDialTime
	}
	if l.IdleTime <= 0 {
		l.IdleTime = DefaultIdleTime
	}
	if l.MaxTime == 0 {
		l.MaxTime = DefaultMaxTime
	}
	l.Bytes = max(l.Bytes, 0)
	return l
}
