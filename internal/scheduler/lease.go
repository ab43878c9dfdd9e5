package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/filesync"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Reasons for the end of a lease. They are stored and shown to callers.
const (
	Removed   = "removed"   // the caller removed it
	Stopped   = "stopped"   // the caller stopped it with a grace time
	Finished  = "finished"  // its one-shot call ended
	Expired   = "expired"   // its TTL expired
	Idle      = "idle"      // it was unused for its idle time
	Lost      = "lost"      // the container disappeared
	Unclean   = "unclean"   // processes of a command may have survived
	Abandoned = "abandoned" // it was never handed to its caller
	ShutDown  = "shut_down" // everything was shut down
)

// EndReasons returns all reasons for the end of a lease.
func EndReasons() []string {
	return []string{Removed, Stopped, Finished, Expired, Idle, Lost, Unclean, Abandoned, ShutDown}
}

// EndedError reports why a lease has ended. Detail is what the driver reported of a lost sandbox,
// or "". Its class is NotFound.
type EndedError struct{ ID, Reason, Detail string }

// Error implements error. The text is safe for callers.
func (e *EndedError) Error() string {
	return fmt.Sprintf("sandbox %s is gone: %s", e.ID, withDetail(e.Reason, e.Detail))
}

func withDetail(text, detail string) string {
	if detail == "" {
		return text
	}
	return text + ": " + detail
}

// Unwrap returns the errdefs class.
func (e *EndedError) Unwrap() error { return errdefs.ErrNotFound }

var errStopping = usererror.Errorf(errdefs.ErrUnavailable, "the service is stopping")

// errBinding reports that a lease is not handed out yet, although lists show it.
var errBinding = usererror.Errorf(errdefs.ErrUnavailable, "the sandbox is still being prepared")

// errUnknown reports that the engine has not answered since a restart whether the sandbox exists.
var errUnknown = usererror.Errorf(
	errdefs.ErrUnavailable,
	"the engine has not reported the sandbox's state yet: try again",
)

// Lease is one caller's lease of a sandbox. Its methods may be called concurrently.
type Lease struct {
	ID       string
	Caller   string
	Template string
	Created  time.Time
	Expires  time.Time
	IdleTime time.Duration
	Network  string // the profile's network, or ""
	Name     string // the caller's name for it, or ""

	private bool // used by a tool only; callers cannot use it by id
	native  bool // started by the engine's queue, outside of the pools and of admission

	hold    *volumes.Hold    // nil without a workspace
	copied  *copiedWorkspace // nil if the workspace is mounted or there is none
	claimed bool             // the workspace is a volume claim
	memory  int64
	noBash  atomic.Bool
	bound   chan struct{} // closed when bind has returned; the sandbox is used or removed only then

	mu       sync.Mutex
	instance *instance // nil while unknown after a restart; constant once reason is set
	active   int
	used     time.Time
	dirty    bool // used is not stored yet
	reason   string
	detail   string          // what the driver reported of a lost sandbox; constant once reason is set
	ctx      context.Context // ends with the lease; its cause is an *EndedError
	cancel   context.CancelCauseFunc
	idle     chan struct{} // closed when no call is active in the ending lease
	gone     chan struct{} // closed when the sandbox is removed
	stuck    chan struct{} // closed when the first removal has failed
}

func newLease(row store.Sandbox, m *instance, hold *volumes.Hold) *Lease {
	l := &Lease{
		ID: row.ID, Caller: row.Caller, Template: row.Template, Created: row.Created, Expires: row.Expires, IdleTime: row.Idle,
		Network: row.Lease.Network, Name: row.Lease.Name, private: row.Lease.Private, native: row.Lease.Native, hold: hold,
		claimed: row.Lease.Claim,
		memory:  row.Memory, instance: m, used: row.Used,
		bound: make(chan struct{}), idle: make(chan struct{}), gone: make(chan struct{}), stuck: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	if row.Lease.CarryBytes > 0 {
		l.copied = &copiedWorkspace{
			limits: filesync.Limits{Bytes: row.Lease.CarryBytes},
			name:   cmp.Or(row.Lease.Named, row.Lease.Workspace),
		}
	}
	return l
}

// Use is one call's use of a lease. During a Use the lease is not idle. When the lease ends, its
// sandbox is not removed until Leave is called or callGrace has passed.
type Use struct {
	*guest.Client
	// Ctx ends with the call's context or with the lease.
	Ctx   context.Context
	lease *Lease
	leave func()
	stop  func()
	once  sync.Once
}

// Enter starts a use of the lease. The caller must call Leave on the result.
func (l *Lease) Enter(ctx context.Context) (*Use, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.checkUsable(); err != nil {
		return nil, err
	}
	l.active++
	return l.newUse(ctx, l.leave), nil
}

// Attend is like Enter for background services of a sandbox: the lease may become idle, and its end
// does not wait for Leave.
func (l *Lease) Attend(ctx context.Context) (*Use, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.checkUsable(); err != nil {
		return nil, err
	}
	return l.newUse(ctx, func() {}), nil
}

// checkUsable returns an error if the lease cannot be used now. The caller holds mu.
func (l *Lease) checkUsable() error {
	if l.reason != "" {
		return &EndedError{ID: l.ID, Reason: l.reason, Detail: l.detail}
	}
	if l.instance == nil {
		return fmt.Errorf("sandbox %s: %w", l.ID, errUnknown)
	}
	select {
	case <-l.bound:
		return nil
	default:
		return fmt.Errorf("sandbox %s: %w", l.ID, errBinding)
	}
}

// newUse returns a Use that calls leave at its end. The caller holds mu.
func (l *Lease) newUse(ctx context.Context, leave func()) *Use {
	both, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return &Use{
		Client: l.instance.guest,
		Ctx:    both,
		lease:  l,
		leave:  leave,
		stop:   func() { stop(); cancel(context.Canceled) },
	}
}

// Leave ends the use. It may be called more than once.
func (u *Use) Leave() {
	u.once.Do(func() {
		u.stop()
		u.leave()
	})
}

// leave ends one call's use of the lease.
func (l *Lease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	l.used, l.dirty = time.Now(), true
	if l.active == 0 && l.reason != "" {
		close(l.idle)
	}
}

// beginEnd marks the lease as ending and cancels its context. It reports false if the lease is
// already ending, or if reason is Idle and the lease is in use again.
func (l *Lease) beginEnd(reason string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reason != "" || reason == Idle && !l.idleAt(time.Now()) {
		return false
	}
	if l.reason = reason; reason == Lost && l.detail == "" && l.instance != nil {
		l.detail = runtime.EndReasonOf(l.instance.sandbox)
	}
	l.cancel(&EndedError{ID: l.ID, Reason: reason, Detail: l.detail})
	if l.active == 0 {
		close(l.idle)
	}
	return true
}

// endReason returns why the lease has to end now, or "".
func (l *Lease) endReason(now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.reason != "":
		return ""
	case l.instance != nil && l.instance.dead():
		return Lost
	case !now.Before(l.Expires):
		return Expired
	case l.instance != nil && l.idleAt(now):
		return Idle
	}
	return ""
}

// idleAt reports whether the lease is idle at the given time. The caller holds mu.
func (l *Lease) idleAt(now time.Time) bool {
	return l.active == 0 && now.Sub(l.used) >= l.IdleTime
}

// setInstance sets the lease's sandbox after a restart. It reports false if the lease has ended
// since.
func (l *Lease) setInstance(m *instance) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reason != "" {
		return false
	}
	l.instance, l.used = m, time.Now() // time without a usable sandbox is not idle time
	return true
}

// LastUse returns when the last call ended, or when the lease began.
func (l *Lease) LastUse() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// Figures returns the sandbox's current resource usage. It does not count as a use of the lease.
func (l *Lease) Figures(ctx context.Context) (runtime.Figures, error) {
	l.mu.Lock()
	m, reason, detail := l.instance, l.reason, l.detail
	l.mu.Unlock()
	switch {
	case reason != "":
		return runtime.Figures{}, &EndedError{ID: l.ID, Reason: reason, Detail: detail}
	case m == nil:
		return runtime.Figures{}, fmt.Errorf("sandbox %s: %w", l.ID, errUnknown)
	}
	return runtime.FiguresOf(ctx, m.sandbox)
}

// touch records a use of the lease now.
func (l *Lease) touch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used, l.dirty = time.Now(), true
}

// takeUnsavedUse returns the last use and reports whether it still has to be stored.
func (l *Lease) takeUnsavedUse() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dirty := l.dirty
	l.dirty = false
	return l.used, dirty
}

// LostDetail returns why the sandbox has ended, if its driver reports that, or "". The lease may
// still be live.
func (l *Lease) LostDetail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.detail == "" && l.reason == "" && l.instance != nil && l.instance.dead() {
		return runtime.EndReasonOf(l.instance.sandbox)
	}
	return l.detail
}

// setDetail sets what the driver reported of a sandbox that was lost while no process held it.
func (l *Lease) setDetail(detail string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reason == "" {
		l.detail = detail
	}
}

// Ended returns the reason for the lease's end, or "" while it is live.
func (l *Lease) Ended() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason
}

// Gone returns a channel that is closed when the sandbox is removed.
func (l *Lease) Gone() <-chan struct{} { return l.gone }

// Cause returns the *EndedError of a lease that has ended or is ending, else nil.
func (l *Lease) Cause() error {
	if e, ok := errors.AsType[*EndedError](context.Cause(l.ctx)); ok {
		return e
	}
	return nil
}

// NoBash holds whether bash was found to be missing in the sandbox. It lives as long as the lease.
func (u *Use) NoBash() *atomic.Bool { return &u.lease.noBash }
