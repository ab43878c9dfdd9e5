package netpolicy

import (
	"math"
	"syscall"
	"time"
)

// Defaults of Limits.
const (
	DefaultConnections = 512
	DefaultHeaderTime  = 10 * time.Second
	DefaultDialTime    = 10 * time.Second
	DefaultIdleTime    = 5 * time.Minute
	DefaultMaxTime     = 4 * time.Hour
)

// Bounds that are not for operators to set.
const (
	// maxHeader is what a request's head may take, and an answer's.
	maxHeader = 32 << 10
	// filesPerConnection is how many descriptors there have to be for each
	// connection of all sessions together: it takes two, and three quarters are for
	// clients of the service. freeShare are those of a session that it has all the
	// same.
	filesPerConnection = 8
	freeShare          = 16
	// maxRefused is how many connections over the limit are told so. Those beyond
	// are closed without a word.
	maxRefused = 64
	// lookupTime bounds the answer of all name servers together.
	lookupTime = 5 * time.Second
	// maxAddresses is how many addresses of a name are looked at.
	maxAddresses = 16
	// keptRecent is how many connections a State shows.
	keptRecent = 100
	// acceptsWaiting is how many accepts a session keeps waiting.
	acceptsWaiting = 4
	// lingerTime and lingerBytes bound what is read after the last word to a
	// client, so that the word is not lost to a reset.
	lingerTime  = time.Second
	lingerBytes = 256 << 10
)

// Limits bound what the connections of one session take. What is zero becomes
// its default.
type Limits struct {
	// Connections is how many a session has at once.
	Connections int
	// HeaderTime is how long a client takes for its request, SOCKS5 handshake or
	// ClientHello; DialTime how long connecting takes, name servers not counted.
	HeaderTime, DialTime time.Duration
	// IdleTime ends what carries nothing in either direction.
	IdleTime time.Duration
	// MaxTime ends a tunnel or request whatever it carries; less than zero: never.
	MaxTime time.Duration
	// Bytes is what a session may carry outside, both directions together, as
	// long as it lives; zero: any number.
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

// mostOpen is how many connections this process has descriptors for.
func mostOpen() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return math.MaxInt
	}
	return int(min(files.Cur/filesPerConnection, math.MaxInt))
}
