package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Times of a sandbox's life that no caller can set.
const (
	createTime  = 60 * time.Second // from intent to the first ping
	probeTime   = 2 * time.Second  // a probe before a sandbox is handed out
	destroyTime = 60 * time.Second // one attempt to destroy
	adoptTime   = 10 * time.Second // adopt and ping after a restart
)

// member is one sandbox that is ours: created and not yet gone.
type member struct {
	id       string
	template string
	image    string
	memory   int64
	hooks    int // commands of the warm-up that stay
	sandbox  runtime.Sandbox
	guest    *guest.Client
}

func newMember(row store.Sandbox, sb runtime.Sandbox) *member {
	return &member{id: row.ID, template: row.Template, image: row.Image, memory: row.Memory, sandbox: sb, guest: guest.New(sb)}
}

func (m *member) dead() bool {
	select {
	case <-m.sandbox.Done():
		return true
	default:
		return false
	}
}

// create makes one sandbox of a template and waits for its guest. The intent
// is in the store before the driver is asked, so nothing that a crash leaves
// is unknown.
func (s *Scheduler) create(ctx context.Context, t Template, from *source) (m *member, err error) {
	memory := t.Spec.Limits.MemoryBytes
	if err := s.budget.take(ctx, memory, from); err != nil {
		return nil, err
	}
	defer s.budget.made(from)
	short, cancel := context.WithTimeoutCause(ctx, createTime, fmt.Errorf("a sandbox of template %s was not ready within %s: %w", t.Name, createTime, context.DeadlineExceeded))
	defer cancel()
	id, err := uuid.NewV7()
	if err != nil {
		s.budget.give(memory)
		return nil, err
	}
	row := store.Sandbox{
		ID: id.String(), State: store.Creating, Template: t.Name, Runtime: s.opts.Driver.Name(), Image: t.Spec.Image.ID,
		Build: s.build(t), Memory: memory, Created: time.Now(),
	}
	if err := s.opts.Store.Insert(short, row); err != nil {
		s.budget.give(memory)
		return nil, err
	}
	failpoint.Hit("scheduler.create.intent")
	s.step(row)
	remove := s.removeByID(row.ID)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.discard(ctx, row, store.Failed, firstLine(err), remove))
		}
	}()
	spec := t.Spec
	spec.ID, spec.Owner, spec.Template, spec.Build = row.ID, s.opts.Store.Owner(), t.Name, row.Build
	sb, err := s.opts.Driver.Create(short, spec)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox of template %s: %w", t.Name, err)
	}
	remove = sb.Destroy
	m = newMember(row, sb)
	if err := m.ready(short); err != nil {
		return nil, err
	}
	if err := m.warmUp(ctx, t); err != nil { // which has times of its own
		return nil, err
	}
	failpoint.Hit("scheduler.create.ready")
	row, err = s.opts.Store.Update(ctx, m.id, func(b *store.Sandbox) error { b.State = store.Warm; return nil })
	if err != nil {
		return nil, err
	}
	s.step(row)
	return m, nil
}

// ready waits for the guest's first answer.
func (m *member) ready(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() { // ends with this function
		select {
		case <-m.sandbox.Done():
			cancel(fmt.Errorf("the sandbox ended before its guest answered: %w", errdefs.ErrUnavailable))
		case <-ended:
		}
	}()
	pong, err := m.guest.Ping(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("wait for the guest: %w", err)
	}
	return checkPong(pong)
}

func checkPong(p wire.Pong) error {
	if p.Version != wire.Version {
		return fmt.Errorf("the guest speaks version %d and this program %d: %w", p.Version, wire.Version, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// probe asks a warm sandbox whether it can be handed out.
func (m *member) probe(ctx context.Context) error {
	if m.dead() {
		return fmt.Errorf("sandbox %s has ended: %w", m.id, errdefs.ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	p, err := m.guest.Ping(ctx)
	if err != nil {
		return err
	}
	if p.Claimed {
		return fmt.Errorf("sandbox %s is claimed already: %w", m.id, errdefs.ErrFailedPrecondition)
	}
	if p.Commands < m.hooks {
		return fmt.Errorf("sandbox %s: of its warm-up %d of %d commands run: %w", m.id, p.Commands, m.hooks, errdefs.ErrFailedPrecondition)
	}
	return checkPong(p)
}

// discard removes a sandbox from any state, gives its room back and records
// its end. It goes on when ctx has ended. An error means that something may
// be left: the row says stopping, and the sweep tries again.
func (s *Scheduler) discard(ctx context.Context, row store.Sandbox, to store.State, reason string, remove func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTime)
	defer cancel()
	if err := s.mark(ctx, row.ID, store.Stopping, reason); err != nil {
		s.log.Error("sandbox not marked as stopping", "sandbox", row.ID, "error", err)
	}
	failpoint.Hit("scheduler.destroy.marked")
	if err := remove(ctx); err != nil {
		s.retry(broken{row: row, to: to, reason: reason, remove: remove})
		return fmt.Errorf("remove sandbox %s: %w", row.ID, err)
	}
	failpoint.Hit("scheduler.destroy.removed")
	s.budget.give(row.Memory)
	return s.mark(ctx, row.ID, to, reason)
}

// removeByID removes a sandbox that there is no handle of.
func (s *Scheduler) removeByID(id string) func(context.Context) error {
	return func(ctx context.Context) error { return s.opts.Driver.Remove(ctx, id) }
}

// mark steps a row; one that is not there, or has ended, stays so.
func (s *Scheduler) mark(ctx context.Context, id string, to store.State, reason string) error {
	same := false
	row, err := s.opts.Store.Update(ctx, id, func(b *store.Sandbox) error {
		if same = b.State == to || b.State.Ended(); b.State.Ended() {
			return nil
		}
		b.State = to
		if b.Reason == "" {
			b.Reason = reason
		}
		if to.Ended() {
			b.Ended = time.Now()
		}
		return nil
	})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err == nil && !same {
		s.step(row)
	}
	return err
}

func firstLine(err error) string {
	text := err.Error()
	for i, r := range text {
		if r == '\n' || i > 300 {
			return text[:i]
		}
	}
	return text
}
