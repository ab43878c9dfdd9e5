package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/go-units"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/filesync"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// carryTime bounds one way of a workspace that is carried.
const carryTime = 5 * time.Minute

// carried is a workspace whose files are in the sandbox as a copy.
type carried struct {
	limits filesync.Limits
	name   string // as its caller calls it

	mu   sync.Mutex // held while files travel
	last time.Time  // when the workspace was last what the sandbox had
}

// carryBytes is how much of a workspace may travel into a sandbox of a template
// and back: 0 where it is mounted.
func (s *Scheduler) carryBytes(t Template, l store.Lease) int64 {
	if l.Workspace == "" || s.opts.Driver.Capabilities(t.Spec.Class).Has(runtime.CapLateBind) {
		return 0
	}
	return t.Spec.Limits.WithDefaults().ScratchBytes
}

// give lets a sandbox have the workspace of its lease.
func (s *Scheduler) give(ctx context.Context, l *Lease) error {
	b := l.hold.Binding()
	// What an earlier process had received whole and not yet put in its place.
	if err := s.recoverCarried(ctx, b.Source); err != nil {
		return err
	}
	if l.carry == nil {
		return l.member.sandbox.Bind(ctx, b)
	}
	return l.carry.in(ctx, l, b)
}

// recovering keeps two leases that read the same workspace from finishing the
// same carrying.
var recovering turns

func (s *Scheduler) recoverCarried(ctx context.Context, dir string) error {
	leave, err := recovering.enter(ctx, dir)
	if err != nil {
		return err
	}
	defer leave()
	return filesync.Recover(ctx, dir, owner)
}

// turns are one at a time for each folder. What commands left in a folder may
// take long to be removed, and they may go on adding to it: nobody who has
// another folder waits for that.
type turns struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // closed when the turn is over
}

func (t *turns) enter(ctx context.Context, dir string) (leave func(), err error) {
	for {
		t.mu.Lock()
		busy, taken := t.taken[dir]
		if !taken {
			over := make(chan struct{})
			if t.taken == nil {
				t.taken = map[string]chan struct{}{}
			}
			t.taken[dir] = over
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.taken, dir)
				close(over)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// owner has the files that come back.
var owner = filesync.Owner{UID: runtime.CommandUID, GID: runtime.CommandGID}

// in carries the files into the sandbox.
func (c *carried) in(ctx context.Context, l *Lease, b runtime.Binding) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, carryTime, fmt.Errorf("workspace not carried within %s", carryTime))
	defer cancel()
	sum, err := filesync.Measure(ctx, b.Source, filesync.Limits{Bytes: 1 << 60})
	if err != nil {
		return err
	}
	if sum.Room > c.limits.Bytes {
		return usererror.Errorf(errdefs.ErrFailedPrecondition,
			"workspace %s has %s of files and does not fit: it is carried into this sandbox, whose /workspace has room for %s; raise limits.scratch of template %s, or use a template of class container",
			c.name, units.BytesSize(float64(sum.Room)), units.BytesSize(float64(c.limits.Bytes)), l.Template)
	}
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends with the pipe
		_, err := filesync.Pack(ctx, in, b.Source, c.limits, nil)
		done <- in.CloseWithError(err)
	}()
	_, err = l.member.guest.Unpack(ctx, wire.Carry{MaxBytes: c.limits.Bytes, ReadOnly: b.ReadOnly}, out)
	err = errors.Join(err, out.CloseWithError(io.ErrClosedPipe), <-done)
	if err == nil {
		c.last = time.Now()
	}
	return err
}

// out carries the files back. The workspace is all of what the sandbox has, or
// what it was.
func (c *carried) out(ctx context.Context, l *Lease) (filesync.Sum, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, carryTime, fmt.Errorf("workspace not carried within %s", carryTime))
	defer cancel()
	began := time.Now()
	sum, err := c.try(ctx, l, false)
	if errors.Is(err, filesync.ErrKept) {
		sum, err = c.try(ctx, l, true)
	}
	if err == nil {
		c.last = began
	}
	if e, ok := errors.AsType[*filesync.TooLargeError](err); ok {
		err = usererror.Errorf(errdefs.ErrFailedPrecondition, "the files in the sandbox have more than %s and cannot be carried to workspace %s; make room, %.200q is one of them",
			units.BytesSize(float64(e.Limit)), c.name, e.Path)
	}
	return sum, err
}

func (c *carried) try(ctx context.Context, l *Lease, whole bool) (filesync.Sum, error) {
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends with the pipe
		_, err := l.member.guest.Pack(ctx, wire.Carry{MaxBytes: c.limits.Bytes, Whole: whole}, in)
		_ = in.CloseWithError(err)
		done <- err
	}()
	sum, err := filesync.Apply(ctx, out, l.hold.Binding().Source, c.limits, owner)
	_ = out.CloseWithError(errStopped)
	if perr := <-done; err == nil && perr != nil {
		err = perr
	}
	return sum, err
}

var errStopped = errors.New("the files are not taken any more")

// back says whether what is in the sandbox is to be in the workspace.
func (l *Lease) back() bool {
	return l.carry != nil && l.hold != nil && !l.hold.Binding().ReadOnly
}

// Sync brings the workspace up to what the sandbox has now. carried false: there
// is nothing to do, for it is mounted, or read-only, or there is none. The lease
// must be in use.
func (s *Scheduler) Sync(ctx context.Context, l *Lease) (sum filesync.Sum, carries bool, err error) {
	if !l.back() {
		return filesync.Sum{}, false, nil
	}
	sum, err = l.carry.out(ctx, l)
	return sum, true, err
}

// carryHome carries the files of a lease that ends, after everything in it was
// stopped. What could not be carried is said in the reason of its end.
func (s *Scheduler) carryHome(ctx context.Context, l *Lease, reason string) {
	if !l.back() || reason == Abandoned {
		return
	}
	err := error(usererror.Errorf(errdefs.ErrUnavailable, "the sandbox went away"))
	if l.member != nil && !l.member.dead() {
		s.killShells(ctx, l)
		failpoint.Hit("scheduler.carry.home")
		_, err = l.carry.out(ctx, l)
	}
	if err == nil {
		return
	}
	s.log.Error("changes of a workspace were not carried back", "sandbox", l.ID, "workspace", l.carry.name, "error", err)
	l.carry.mu.Lock()
	since := "since its lease began"
	if !l.carry.last.IsZero() {
		since = "since " + l.carry.last.UTC().Format(time.RFC3339)
	}
	l.carry.mu.Unlock()
	lost := fmt.Sprintf("%s; what changed in workspace %s %s is lost: %s", reason, l.carry.name, since, sentence(err))
	if _, err := s.opts.Store.Update(ctx, l.ID, func(b *store.Sandbox) error {
		b.Reason = lost
		return nil
	}); err != nil {
		s.log.Error("loss of changes not recorded", "sandbox", l.ID, "error", err)
	}
}

// sentence is what of an error was made for callers.
func sentence(err error) string {
	if e, ok := errors.AsType[*usererror.Error](err); ok {
		return e.Error()
	}
	return "the log says why"
}

// killShells stops what still writes.
func (s *Scheduler) killShells(ctx context.Context, l *Lease) {
	ctx, cancel := context.WithTimeout(ctx, destroyTime)
	defer cancel()
	shells, err := l.member.guest.Shells(ctx)
	if err != nil {
		return // packing tells
	}
	for _, sh := range shells {
		if sh.Result == nil {
			if _, err := l.member.guest.Kill(ctx, wire.Kill{ID: sh.ID}); err != nil {
				s.log.Warn("shell not killed before its files are carried", "shell", sh.ID, "error", err)
			}
		}
	}
}

// findCarried gives a lease that is to end its sandbox, so that its files come
// back first: those of a service that was killed while it ended it.
func (s *Scheduler) findCarried(ctx context.Context, l *Lease, row store.Sandbox) {
	if !l.back() {
		return
	}
	m, err := s.adopt(ctx, row)
	if err != nil {
		s.log.Warn("sandbox not found to carry its files back", "sandbox", l.ID, "error", err)
		return
	}
	p := s.pool(row.Template)
	if p != nil {
		p.AdoptTaken(m)
	}
	if !l.found(m) && p != nil {
		p.Gone(m)
	}
}
