package httpguard

import (
	chain "container/list"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// Shares of the file descriptors that this process may open.
const (
	// filesPerConn is the number of descriptors per connection: one for the connection, up to two
	// towards a sandbox, and the rest for the service.
	filesPerConn = 4
	// reservedShare is the fraction (1/n) of the connections that is reserved for anonymous ones.
	// As many are reserved for operators.
	reservedShare = 8
	// maxAnonymous bounds the anonymous connections, because each can hold a whole header.
	maxAnonymous = 1024
	// requestShare and streamShare are the fractions (1/n) of the other connections that bound the
	// requests and streams of one caller.
	requestShare = 2
	streamShare  = 4
	// maxOver bounds the connections of one holder that are over a limit and wait for that answer. All
	// holders together have at least as many, and half of the anonymous share.
	maxOver = 4
	// warnTime is the shortest time between two log lines about eviction.
	warnTime = time.Minute
)

// ConnBounds are the bounds of a ConnLimiter.
type ConnBounds struct {
	Total     int // all connections
	Anonymous int // reserved connections without a caller
	// MaxAnonymous is the most of these, also while other shares are free; 0 means no bound.
	MaxAnonymous int
	Callers      int // connections of callers that are not operators
	Requests     int // concurrent requests of one such caller
	Streams      int // of these: events, followed output, terminals, tunnels
}

// HostBounds divides the connections that the open files of this process allow. requests and
// streams are configured limits of one caller; zero means a caller's share.
func HostBounds(requests, streams int) ConnBounds { return boundsOf(openFiles(), requests, streams) }

// boundsOf divides the connections that a number of descriptors allows. requests and streams are
// configured limits; zero means a caller's share.
func boundsOf(files, requests, streams int) ConnBounds {
	total := max(files/filesPerConn, reservedShare)
	reserved := total / reservedShare
	b := ConnBounds{
		Total: total, Anonymous: reserved, MaxAnonymous: min(total, maxAnonymous), Callers: total - 2*reserved,
	}
	least := func(configured, share int) int {
		if configured > 0 {
			return min(configured, max(share, 1))
		}
		return max(share, 1)
	}
	b.Requests = least(requests, b.Callers/requestShare)
	b.Streams = least(streams, b.Callers/streamShare)
	return b
}

// ConnLimiter shares the service's connections among their holders.
//
// A connection is anonymous until a request on it identifies a caller; then it belongs to that
// caller. Callers and operators cannot use the share of anonymous connections, and callers cannot
// use the share of operators. When a share is full, a new connection evicts another one. An
// anonymous connection evicts the anonymous one that waits longest. A caller's connection evicts
// one of the caller with the most connections: idle ones first, then the newest. Operators evict
// callers, and lose only idle connections to other operators. A caller with too many requests or
// streams gets a *caller.QuotaError. The methods may be called concurrently.
type ConnLimiter struct {
	bounds ConnBounds
	log    *slog.Logger

	mu        sync.Mutex
	anonymous *connHolder
	operators *connHolder
	callers   map[string]*connHolder
	ofCallers int // connections of all callers that are not operators
	over      int // connections over a limit that get an answer
	warned    time.Time
	evicted   *connHolder // for which unlock logs an eviction
}

// unlock releases the lock, and then logs an eviction. A slow log does not delay other connections.
func (l *ConnLimiter) unlock() {
	h := l.evicted
	l.evicted = nil
	l.mu.Unlock()
	if h != nil {
		l.log.Warn("too many connections: evicting", "caller", h.name, "operator", h == l.operators,
			"anonymous", h == l.anonymous, "max", l.bounds.Total)
	}
}

// connHolder holds connections. It is a caller, all operators together, or all anonymous clients
// together.
type connHolder struct {
	name              string
	idle, busy        chain.List // of *limitedConn, the oldest first
	requests, streams int
	over              int // connections over a limit that get an answer
}

func (h *connHolder) conns() int { return h.idle.Len() + h.busy.Len() }

// limitedConn is a connection that a ConnLimiter counts until Close. net/http and the code that
// hijacks it use it as the connection.
type limitedConn struct {
	net.Conn
	l *ConnLimiter

	// The fields below are guarded by l.mu.
	holder *connHolder // nil: closed
	token  string      // ID of the token of the last request
	active bool        // serving a request
	over   bool        // counted in over of l and of holder
	expiry *time.Timer // closes the connection when that token expires, or nil
	place  *chain.Element
}

type connKey struct{}

// retryTime is the suggested retry delay, because it is unknown when others end.
const retryTime = time.Second

// NewConnLimiter returns a ConnLimiter without connections.
func NewConnLimiter(b ConnBounds, log *slog.Logger) *ConnLimiter {
	return &ConnLimiter{bounds: b, log: log, anonymous: &connHolder{}, operators: &connHolder{},
		callers: map[string]*connHolder{}}
}

// Limit makes h report the state of its connections to l. It returns the listener that h must
// serve in place of inner.
func (l *ConnLimiter) Limit(h *http.Server, inner net.Listener) net.Listener {
	h.ConnContext, h.ConnState = l.context, l.state
	return limitedListener{inner, l}
}

// AnonymousShare returns how many connections without a caller may always be open.
func (l *ConnLimiter) AnonymousShare() int { return min(l.bounds.Anonymous, maxAnonymous) }

// Len returns the number of open connections, and of callers that hold connections or requests.
func (l *ConnLimiter) Len() (conns, callers int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.anonymous.conns() + l.operators.conns() + l.ofCallers, len(l.callers)
}

// Held returns what a caller that is not an operator holds: its connections, those that serve a
// request, its running requests, and the streams among these.
func (l *ConnLimiter) Held(caller string) (conns, busy, requests, streams int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.callers[caller]
	if h == nil {
		return 0, 0, 0, 0
	}
	return h.conns(), h.busy.Len(), h.requests, h.streams
}

// limitedListener counts the connections that it accepts.
type limitedListener struct {
	net.Listener
	l *ConnLimiter
}

// Accept implements net.Listener. If the process has no descriptor left, Accept closes a
// connection, and net/http tries again.
func (a limitedListener) Accept() (net.Conn, error) {
	nc, err := a.Listener.Accept()
	if err != nil {
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			a.l.closeOne()
		}
		return nil, err
	}
	c := &limitedConn{Conn: nc, l: a.l}
	a.l.mu.Lock()
	defer a.l.unlock()
	a.l.attach(c, a.l.anonymous)
	// The other shares are fixed, so the connections over the total are anonymous.
	anonymous := a.l.anonymous.conns()
	most := a.l.bounds.MaxAnonymous
	if most > 0 && anonymous > most || anonymous+a.l.operators.conns()+a.l.ofCallers > a.l.bounds.Total {
		a.l.evict(a.l.anonymous, c)
	}
	return c, nil
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.l.mu.Lock()
	c.l.detach(c)
	c.l.closeAt(c, time.Time{})
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the write direction, if the connection supports it.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// state implements http.Server.ConnState. Close removes closed connections.
func (l *ConnLimiter) state(conn net.Conn, now http.ConnState) {
	c := limited(conn)
	if c == nil || now != http.StateActive && now != http.StateIdle {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := c.holder; h != nil {
		c.active = now == http.StateActive
		if h == l.anonymous && c.active {
			return // received bytes alone do not make an anonymous connection newer
		}
		l.attach(c, h)
	}
}

// context implements http.Server.ConnContext.
func (l *ConnLimiter) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, limited(conn))
}

// attach makes c the newest connection of h. The caller holds the lock.
func (l *ConnLimiter) attach(c *limitedConn, h *connHolder) {
	l.detach(c)
	c.holder = h
	if c.active && h != l.anonymous {
		c.place = h.busy.PushBack(c)
	} else {
		c.place = h.idle.PushBack(c)
	}
	if l.ofCaller(h) {
		l.ofCallers++
		l.callers[h.name] = h
	}
}

// detach removes a connection from its holder. The caller holds the lock.
func (l *ConnLimiter) detach(c *limitedConn) {
	h := c.holder
	if h == nil {
		return
	}
	h.idle.Remove(c.place) // one of the two lists has it
	h.busy.Remove(c.place)
	c.holder, c.place = nil, nil
	if c.over {
		c.over = false
		h.over--
		l.over--
	}
	if l.ofCaller(h) {
		l.ofCallers--
		l.forget(h)
	}
}

func (l *ConnLimiter) ofCaller(h *connHolder) bool { return h != l.anonymous && h != l.operators }

// forget drops a caller that holds nothing. The caller holds the lock.
func (l *ConnLimiter) forget(h *connHolder) {
	if h.conns() == 0 && h.requests == 0 && l.callers[h.name] == h {
		delete(l.callers, h.name)
	}
}

// holder returns the holder for the connections of a call. The caller holds the lock.
func (l *ConnLimiter) holder(p caller.Principal) *connHolder {
	switch {
	case p.Operator:
		return l.operators
	case p.Caller == "":
		return l.anonymous
	}
	h := l.callers[p.Caller]
	if h == nil {
		h = &connHolder{name: p.Caller}
		l.callers[p.Caller] = h
	}
	return h
}

// Begin counts a request of a caller until end is called, and assigns its connection to that
// caller. stream requests also count as streams. Operators and anonymous requests are bounded only
// by their connections. The error is a *caller.QuotaError, within a *ConnectionError if the
// connection is over a bound.
func (l *ConnLimiter) Begin(r *http.Request, p caller.Principal, stream bool) (end func(), err error) {
	none := func() {}
	l.mu.Lock()
	defer l.unlock()
	h := l.holder(p)
	if c, ok := r.Context().Value(connKey{}).(*limitedConn); ok && c != nil && c.holder != nil {
		c.token = p.Token
		l.closeAt(c, p.Expires)
		if err := l.assign(c, h); err != nil {
			return none, &ConnectionError{error: err, Drop: !l.admitOver(c)}
		}
	}
	if !l.ofCaller(h) {
		return none, nil
	}
	switch {
	case h.requests >= l.bounds.Requests:
		defer l.forget(h)
		return none, tooMany("max_requests", h.requests, l.bounds.Requests, "requests at once (callers.max_requests)")
	case stream && h.streams >= l.bounds.Streams:
		defer l.forget(h)
		return none, tooMany("max_streams", h.streams, l.bounds.Streams, "streams at once (callers.max_streams)")
	}
	count := func(n int) {
		h.requests += n
		if stream {
			h.streams += n
		}
	}
	count(1)
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		count(-1)
		l.forget(h)
	}), nil
}

// closeAt closes the connection at a time, with its running request, unless a later call replaces
// the time. Zero means never. The caller holds the lock.
func (l *ConnLimiter) closeAt(c *limitedConn, at time.Time) {
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
	if at.IsZero() {
		return
	}
	var own *time.Timer
	own = time.AfterFunc(time.Until(at), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c.expiry == own {
			l.detach(c)
			c.Conn.Close() // the client finds out by its next read
		}
	})
	c.expiry = own
}

// admitOver reports whether a connection over a limit gets an answer, and counts it until it is
// closed. An answer may be delayed and read slowly, so the number of such connections is bounded
// too. The caller holds the lock.
func (l *ConnLimiter) admitOver(c *limitedConn) bool {
	if c.holder.over >= maxOver || l.over >= max(maxOver, l.bounds.Anonymous/2) {
		return false
	}
	c.over = true
	c.holder.over++
	l.over++
	return true
}

// ConnectionError is the refusal of a connection over its holder's limit, not of a request.
type ConnectionError struct {
	error
	// Drop says that too many such connections are open: this one must be closed without an answer.
	Drop bool
}

// Unwrap returns the *caller.QuotaError.
func (e *ConnectionError) Unwrap() error { return e.error }

func tooMany(quota string, used, limit int, unit string) error {
	return &caller.QuotaError{Quota: quota, Limit: int64(limit), Used: int64(used), Unit: unit, RetryAfter: retryTime}
}

// assign gives a connection that serves a request to h, and evicts another one if needed. The
// caller holds the lock.
func (l *ConnLimiter) assign(c *limitedConn, h *connHolder) error {
	c.active = true
	l.attach(c, h)
	switch {
	case h == l.anonymous:
		return nil
	case l.ofCaller(h) && h.conns() > l.bounds.Requests:
		if h.idle.Len() == 0 {
			return tooMany("max_requests", h.conns()-1, l.bounds.Requests, "requests at once (callers.max_requests)")
		}
		l.evict(h, c)
	}
	most := l.bounds.Total - l.bounds.Anonymous
	full := l.ofCallers+l.operators.conns() > most
	if !full && l.ofCallers <= l.bounds.Callers {
		return nil
	}
	victim := l.largest()
	switch {
	case victim == nil: // operators hold all of them
		victim = l.operators
	case l.ofCaller(h) && victim.conns() <= h.conns():
		victim = h
	}
	if victim.idle.Len() == 0 && (victim == h || victim == l.operators) {
		return tooMany("connections", most, most, "connections of the service")
	}
	l.evict(victim, c)
	return nil
}

// largest returns the caller with the most connections, or nil if no caller has any. The caller
// holds the lock.
func (l *ConnLimiter) largest() (most *connHolder) {
	for _, h := range l.callers {
		if h.conns() > 0 && (most == nil || h.conns() > most.conns()) {
			most = h
		}
	}
	return most
}

// evict closes a connection of h other than c: the one that is idle longest, or else the newest.
// The caller holds the lock.
func (l *ConnLimiter) evict(h *connHolder, c *limitedConn) {
	at := h.idle.Front()
	if at == nil {
		at = h.busy.Back()
	}
	if at != nil && at.Value == c {
		at = at.Prev()
	}
	if at == nil {
		return
	}
	old := at.Value.(*limitedConn) // nothing else is in it
	l.detach(old)
	old.Conn.Close() // the client finds out by that
	if time.Since(l.warned) > warnTime {
		l.warned, l.evicted = time.Now(), h
	}
}

// closeOne closes one connection: of the caller with the most, or else an anonymous one.
func (l *ConnLimiter) closeOne() {
	l.mu.Lock()
	defer l.unlock()
	if h := l.largest(); h != nil {
		l.evict(h, nil)
		return
	}
	l.evict(l.anonymous, nil)
}
