package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/filesync"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Reasons a lease ends for. They are stored and shown.
const (
	Removed   = "removed"   // the caller asked for it
	Stopped   = "stopped"   // the caller asked, and left time to end
	Finished  = "finished"  // its one-shot call has ended
	Expired   = "expired"   // its TTL was over
	Idle      = "idle"      // nobody used it for its idle time
	Lost      = "lost"      // the container went away
	Unclean   = "unclean"   // a command could not be seen dead
	Abandoned = "abandoned" // it was never handed to its caller
	ShutDown  = "shut_down" // everything was taken down
)

// EndedError says why a lease is over; it is of class NotFound.
type EndedError struct{ ID, Reason string }

// Error is a whole sentence for the caller.
func (e *EndedError) Error() string { return fmt.Sprintf("sandbox %s is gone: %s", e.ID, e.Reason) }

// Unwrap gives the class.
func (e *EndedError) Unwrap() error { return errdefs.ErrNotFound }

var errStopping = usererror.Errorf(errdefs.ErrUnavailable, "the service is stopping")

// errBinding: the lease is seen in a list before it is handed out.
var errBinding = usererror.Errorf(errdefs.ErrUnavailable, "the sandbox is not handed out yet")

// errUnknown: after a restart it could not be told whether the sandbox lives.
var errUnknown = usererror.Errorf(errdefs.ErrUnavailable, "the engine could not tell yet whether the sandbox lives: try again")

// Lease is one caller's hold on one sandbox. Its methods may be called
// concurrently.
type Lease struct {
	ID       string
	Caller   string
	Template string
	Created  time.Time
	Expires  time.Time
	IdleTime time.Duration
	Network  string // of the profile that it was leased for, or ""

	private bool // a tool's own: nobody can name it

	hold   *volumes.Hold // nil without a workspace
	carry  *carried      // nil where the workspace is mounted, or none is had
	memory int64
	bound  chan struct{} // closed when nothing is bound to it any more: only then it is used, or destroyed

	mu     sync.Mutex
	member *member // nil while it is unknown whether it lives; does not change once reason is set
	active int
	used   time.Time
	dirty  bool // used was not stored yet
	reason string
	ctx    context.Context // ends with the lease, with an EndedError as its cause
	cancel context.CancelCauseFunc
	idle   chan struct{} // closed when active falls to 0 while the lease ends
	gone   chan struct{} // closed when nothing is left of it
	stuck  chan struct{} // closed when the first attempt to remove it failed
}

func newLease(row store.Sandbox, m *member, hold *volumes.Hold) *Lease {
	l := &Lease{
		ID: row.ID, Caller: row.Caller, Template: row.Template, Created: row.Created, Expires: row.Expires, IdleTime: row.Idle,
		Network: row.Lease.Network, private: row.Lease.Private, hold: hold, memory: row.Memory, bound: make(chan struct{}), member: m, used: row.Used, idle: make(chan struct{}), gone: make(chan struct{}), stuck: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	if row.Lease.CarryBytes > 0 {
		l.carry = &carried{limits: filesync.Limits{Bytes: row.Lease.CarryBytes}, name: cmp.Or(row.Lease.Named, row.Lease.Workspace)}
	}
	return l
}

// Use is one call's hold on a lease: the lease is not idle, and is not
// destroyed under the call before its context has ended.
type Use struct {
	*guest.Client
	// Ctx ends with the call's own context or with the lease.
	Ctx   context.Context
	lease *Lease
	leave func()
	stop  func()
	once  sync.Once
}

// Enter begins a call. The caller calls Leave on the result.
func (l *Lease) Enter(ctx context.Context) (*Use, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	l.active++
	return l.use(ctx, l.leave), nil
}

// Attend is Enter for who only waits for what the sandbox does: the lease may be
// idle meanwhile, and its end waits for nobody.
func (l *Lease) Attend(ctx context.Context) (*Use, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	return l.use(ctx, func() {}), nil
}

// usable is to be called with the lock held.
func (l *Lease) usable() error {
	if l.reason != "" {
		return &EndedError{ID: l.ID, Reason: l.reason}
	}
	if l.member == nil {
		return fmt.Errorf("sandbox %s: %w", l.ID, errUnknown)
	}
	select {
	case <-l.bound:
		return nil
	default:
		return fmt.Errorf("sandbox %s: %w", l.ID, errBinding)
	}
}

// use is to be called with the lock held.
func (l *Lease) use(ctx context.Context, leave func()) *Use {
	both, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return &Use{Client: l.member.guest, Ctx: both, lease: l, leave: leave, stop: func() { stop(); cancel(context.Canceled) }}
}

// Leave ends the call; it may be called twice.
func (u *Use) Leave() {
	u.once.Do(func() {
		u.stop()
		u.leave()
	})
}

// leave is the end of a call.
func (l *Lease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	l.used, l.dirty = time.Now(), true
	if l.active == 0 && l.reason != "" {
		close(l.idle)
	}
}

// begin starts the end of the lease. Only the first call gets true; an idle
// lease that is used again by now goes on.
func (l *Lease) begin(reason string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reason != "" || reason == Idle && !l.idleAt(time.Now()) {
		return false
	}
	l.reason = reason
	l.cancel(&EndedError{ID: l.ID, Reason: reason})
	if l.active == 0 {
		close(l.idle)
	}
	return true
}

// due says why the lease should end by itself now, or "".
func (l *Lease) due(now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.reason != "":
		return ""
	case l.member != nil && l.member.dead():
		return Lost
	case !now.Before(l.Expires):
		return Expired
	case l.member != nil && l.idleAt(now):
		return Idle
	}
	return ""
}

// idleAt is to be called with the lock held.
func (l *Lease) idleAt(now time.Time) bool {
	return l.active == 0 && now.Sub(l.used) >= l.IdleTime
}

// found gives the lease its sandbox after a restart; false if it has ended
// meanwhile, and is removed without.
func (l *Lease) found(m *member) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reason != "" {
		return false
	}
	l.member, l.used = m, time.Now() // the time nobody could use it does not count
	return true
}

// LastUse is when the last call ended, or the lease began.
func (l *Lease) LastUse() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// Figures are what the lease's sandbox uses now. It is no use of the lease: one
// that is only looked at ends when it is idle.
func (l *Lease) Figures(ctx context.Context) (runtime.Figures, error) {
	l.mu.Lock()
	m, reason := l.member, l.reason
	l.mu.Unlock()
	switch {
	case reason != "":
		return runtime.Figures{}, &EndedError{ID: l.ID, Reason: reason}
	case m == nil:
		return runtime.Figures{}, fmt.Errorf("sandbox %s: %w", l.ID, errUnknown)
	}
	return runtime.FiguresOf(ctx, m.sandbox)
}

// touch counts the lease as used now.
func (l *Lease) touch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used, l.dirty = time.Now(), true
}

// flush returns the last use if it was not stored yet.
func (l *Lease) flush() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dirty := l.dirty
	l.dirty = false
	return l.used, dirty
}

// Ended is the reason the lease ended or ends for, "" while it lives.
func (l *Lease) Ended() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason
}

// Gone is closed when nothing is left of the sandbox.
func (l *Lease) Gone() <-chan struct{} { return l.gone }

// Cause is the EndedError if the lease has ended or ends, else nil.
func (l *Lease) Cause() error {
	if e, ok := errors.AsType[*EndedError](context.Cause(l.ctx)); ok {
		return e
	}
	return nil
}

// Image is the ID of the image that the sandbox runs.
func (u *Use) Image() string { return u.lease.member.image }
