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

// copyTimeout bounds one copy of a workspace, in either direction.
const copyTimeout = 5 * time.Minute

// copiedWorkspace is a workspace whose files are copied into the sandbox, because it cannot be
// mounted.
type copiedWorkspace struct {
	limits filesync.Limits
	name   string // the caller's name of the workspace

	mu       sync.Mutex // held during a copy
	lastSync time.Time  // when workspace and sandbox were last equal
}

// carryBytes returns the maximum size of a workspace that is copied into a sandbox of the template.
// It returns 0 if workspaces are mounted.
func (s *Scheduler) carryBytes(t Template, l store.Lease) int64 {
	if l.Workspace == "" || l.Claim || s.opts.Driver.Capabilities(t.Spec.Class).Has(runtime.CapLateBind) {
		return 0
	}
	return t.Spec.Limits.WithDefaults().ScratchBytes
}

// bindWorkspace mounts the workspace of the lease or copies it into the sandbox. A sandbox has a
// volume claim from its creation.
func (s *Scheduler) bindWorkspace(ctx context.Context, l *Lease) error {
	if l.claimed {
		return nil
	}
	b := l.hold.Binding()
	// Finish a copy that an earlier process had received completely.
	if err := s.recoverWorkspace(ctx, b.Source); err != nil {
		return err
	}
	if l.copied == nil {
		return l.instance.sandbox.Bind(ctx, b)
	}
	return l.copied.copyIn(ctx, l, b)
}

func (s *Scheduler) recoverWorkspace(ctx context.Context, dir string) error {
	leave, err := s.recoverLocks.Lock(ctx, dir)
	if err != nil {
		return err
	}
	defer leave()
	return filesync.Recover(ctx, dir, owner)
}

// owner owns the files that are copied back.
var owner = filesync.Owner{UID: runtime.CommandUID, GID: runtime.CommandGID}

// copyIn copies the workspace's files into the sandbox.
func (c *copiedWorkspace) copyIn(ctx context.Context, l *Lease, b runtime.Binding) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, copyTimeout, fmt.Errorf("workspace not copied within %s", copyTimeout))
	defer cancel()
	sum, err := filesync.Measure(ctx, b.Source, filesync.Limits{Bytes: 1 << 60})
	if err != nil {
		return err
	}
	if sum.Room > c.limits.Bytes {
		return usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"workspace %s has %s of files and does not fit: "+
				"it is copied into this sandbox, whose /workspace holds %s: raise limits.scratch of template %s, or use a template of class container",
			c.name,
			units.BytesSize(float64(sum.Room)),
			units.BytesSize(float64(c.limits.Bytes)),
			l.Template,
		)
	}
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends with the pipe
		_, err := filesync.Pack(ctx, in, b.Source, c.limits, nil)
		done <- in.CloseWithError(err)
	}()
	_, err = l.instance.guest.Unpack(ctx, wire.Carry{MaxBytes: c.limits.Bytes, ReadOnly: b.ReadOnly}, out)
	err = errors.Join(err, out.CloseWithError(io.ErrClosedPipe), <-done)
	if err == nil {
		c.lastSync = time.Now()
	}
	return err
}

// copyOut copies the sandbox's files back. The workspace is replaced completely or not at all.
func (c *copiedWorkspace) copyOut(ctx context.Context, l *Lease) (filesync.Sum, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, copyTimeout, fmt.Errorf("workspace not copied within %s", copyTimeout))
	defer cancel()
	began := time.Now()
	sum, err := c.copyOutOnce(ctx, l, false)
	if errors.Is(err, filesync.ErrKept) {
		sum, err = c.copyOutOnce(ctx, l, true)
	}
	if err == nil {
		c.lastSync = began
	}
	if e, ok := errors.AsType[*filesync.TooLargeError](err); ok {
		err = usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"the files in the sandbox exceed %s and cannot be copied to workspace %s: remove some, such as %.200q",
			units.BytesSize(float64(e.Limit)),
			c.name,
			e.Path,
		)
	}
	return sum, err
}

func (c *copiedWorkspace) copyOutOnce(ctx context.Context, l *Lease, whole bool) (filesync.Sum, error) {
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends with the pipe
		_, err := l.instance.guest.Pack(ctx, wire.Carry{MaxBytes: c.limits.Bytes, Whole: whole}, in)
		_ = in.CloseWithError(err)
		done <- err
	}()
	sum, err := filesync.Apply(ctx, out, l.hold.Binding().Source, c.limits, owner)
	_ = out.CloseWithError(errCopyStopped)
	if perr := <-done; err == nil && perr != nil {
		err = perr
	}
	return sum, err
}

var errCopyStopped = errors.New("the copy was stopped")

// needsCopyBack reports whether the sandbox's files have to be copied back to the workspace.
func (l *Lease) needsCopyBack() bool {
	return l.copied != nil && l.hold != nil && !l.hold.Binding().ReadOnly
}

// Sync copies the sandbox's files to the workspace. carries is false if the workspace is mounted or
// read-only, or if there is none; Sync then does nothing. The lease must be in use.
func (s *Scheduler) Sync(ctx context.Context, l *Lease) (sum filesync.Sum, carries bool, err error) {
	if !l.needsCopyBack() {
		return filesync.Sum{}, false, nil
	}
	sum, err = l.copied.copyOut(ctx, l)
	return sum, true, err
}

// copyBack copies the files of an ending lease to its workspace, after it has killed all shells. A
// failure is recorded in the lease's reason, with the time since which changes are lost.
func (s *Scheduler) copyBack(ctx context.Context, l *Lease, reason string) {
	if !l.needsCopyBack() || reason == Abandoned {
		return
	}
	err := error(usererror.Errorf(errdefs.ErrUnavailable, "the sandbox went away"))
	if l.instance != nil && !l.instance.dead() {
		s.killShells(ctx, l)
		failpoint.Hit("scheduler.carry.home")
		_, err = l.copied.copyOut(ctx, l)
	}
	if err == nil {
		return
	}
	s.log.Error("failed to copy changes back to a workspace", "sandbox", l.ID, "workspace", l.copied.name, "error", err)
	l.copied.mu.Lock()
	since := "since its lease began"
	if !l.copied.lastSync.IsZero() {
		since = "since " + l.copied.lastSync.UTC().Format(time.RFC3339)
	}
	l.copied.mu.Unlock()
	lost := fmt.Sprintf("%s; what changed in workspace %s %s is lost: %s", reason, l.copied.name, since, userMessage(err))
	if _, err := s.opts.Store.Update(ctx, l.ID, func(b *store.Sandbox) error {
		b.Reason = lost
		return nil
	}); err != nil {
		s.log.Error("failed to record lost changes", "sandbox", l.ID, "error", err)
	}
}

// userMessage returns the text of err for callers, or a reference to the log.
func userMessage(err error) string {
	if e, ok := errors.AsType[*usererror.Error](err); ok {
		return e.Error()
	}
	return "see the service's log"
}

// killShells kills the shells of a lease, which could still write.
func (s *Scheduler) killShells(ctx context.Context, l *Lease) {
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	shells, err := l.instance.guest.Shells(ctx)
	if err != nil {
		return // the copy that follows fails too
	}
	for _, sh := range shells {
		if sh.Result == nil {
			if _, err := l.instance.guest.Kill(ctx, wire.Kill{ID: sh.ID}); err != nil {
				s.log.Warn("failed to kill a shell before copying files back", "shell", sh.ID, "error", err)
			}
		}
	}
}

// adoptForCopyBack adopts the sandbox of an ending lease, so that its files can be copied back. The
// earlier process was killed while it ended the lease.
func (s *Scheduler) adoptForCopyBack(ctx context.Context, l *Lease, row store.Sandbox) {
	if !l.needsCopyBack() {
		return
	}
	m, err := s.adopt(ctx, row)
	if err != nil {
		s.log.Warn("failed to adopt a sandbox to copy files back", "sandbox", l.ID, "error", err)
		return
	}
	p := s.pool(row.Template)
	if p != nil {
		p.AdoptTaken(m)
	}
	if !l.setInstance(m) && p != nil {
		p.Gone(m)
	}
}
