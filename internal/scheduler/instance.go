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

// Timeouts that callers cannot set.
const (
	createTimeout  = 60 * time.Second // from the store's row to the first ping
	probeTimeout   = 2 * time.Second  // probe before a sandbox is handed out
	destroyTimeout = 60 * time.Second // one attempt to remove a sandbox
	adoptTimeout   = 10 * time.Second // adopt or ping after a restart
)

// instance is a sandbox with its guest, from creation to removal.
type instance struct {
	id       string
	template string
	memory   int64
	hooks    int // number of background warm-up commands
	sandbox  runtime.Sandbox
	guest    *guest.Client
}

func newInstance(row store.Sandbox, sb runtime.Sandbox) *instance {
	return &instance{
		id:       row.ID,
		template: row.Template,
		memory:   row.Memory,
		sandbox:  sb,
		guest:    guest.New(sb),
	}
}

func (m *instance) dead() bool {
	select {
	case <-m.sandbox.Done():
		return true
	default:
		return false
	}
}

// create creates a sandbox of a template with a new id and waits for its guest and its warm-up.
func (s *Scheduler) create(ctx context.Context, t Template, from *poolDemand) (*instance, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	return s.createAs(ctx, id.String(), t, from)
}

// createAs is create with a given id. The row is stored before the driver is called, so that
// recovery finds every sandbox after a crash.
func (s *Scheduler) createAs(ctx context.Context, id string, t Template, from *poolDemand) (m *instance, err error) {
	memory := t.Spec.Limits.MemoryBytes
	if err := s.capacity.reserve(ctx, memory, from); err != nil {
		return nil, err
	}
	defer s.capacity.created(from)
	short, cancel := context.WithTimeoutCause(
		ctx,
		createTimeout,
		fmt.Errorf("a sandbox of template %s was not ready within %s: %w", t.Name, createTimeout, context.DeadlineExceeded),
	)
	defer cancel()
	row := store.Sandbox{
		ID: id, State: store.Creating, Template: t.Name, Runtime: s.opts.Driver.Name(), Image: t.Spec.Image.ID,
		Build: s.fingerprint(t), Memory: memory, Created: time.Now(), Lease: t.claimedBy,
	}
	if err := s.opts.Store.Insert(short, row); err != nil {
		s.capacity.release(memory)
		return nil, err
	}
	failpoint.Hit("scheduler.create.intent")
	s.notifyStateChange(row)
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
	m = newInstance(row, sb)
	if err := m.awaitGuest(short); err != nil {
		return nil, err
	}
	if err := m.warmUp(ctx, t); err != nil { // has its own timeouts
		return nil, err
	}
	failpoint.Hit("scheduler.create.ready")
	warm, err := s.opts.Store.Update(ctx, m.id, func(b *store.Sandbox) error { b.State = store.Warm; return nil })
	if err != nil {
		return nil, err
	}
	s.notifyStateChange(warm)
	return m, nil
}

// awaitGuest waits for the guest's first answer.
func (m *instance) awaitGuest(ctx context.Context) error {
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
		return fmt.Errorf(
			"the guest uses protocol version %d and this program %d: %w",
			p.Version,
			wire.Version,
			errdefs.ErrFailedPrecondition,
		)
	}
	return nil
}

// probe calls instance.probe and reports how long the guest took to answer.
func (s *Scheduler) probe(ctx context.Context, m *instance) error {
	began := time.Now()
	err := m.probe(ctx)
	if err == nil && s.opts.OnProbe != nil {
		s.opts.OnProbe(time.Since(began))
	}
	return err
}

// probe checks whether a warm sandbox can be handed out.
func (m *instance) probe(ctx context.Context) error {
	if m.dead() {
		return fmt.Errorf("sandbox %s has ended: %w", m.id, errdefs.ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	p, err := m.guest.Ping(ctx)
	if err != nil {
		return err
	}
	if p.Claimed {
		return fmt.Errorf("sandbox %s is already claimed: %w", m.id, errdefs.ErrFailedPrecondition)
	}
	if p.Commands < m.hooks {
		return fmt.Errorf(
			"sandbox %s: only %d of %d warm-up commands are running: %w",
			m.id,
			p.Commands,
			m.hooks,
			errdefs.ErrFailedPrecondition,
		)
	}
	return checkPong(p)
}

// discard removes a sandbox in any state, releases its capacity and stores its end. It ignores the
// cancellation of ctx. After an error the row stays in state stopping, and retryRemovals tries
// again.
func (s *Scheduler) discard(
	ctx context.Context,
	row store.Sandbox,
	to store.State,
	reason string,
	remove func(context.Context) error,
) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
	defer cancel()
	if err := s.setState(ctx, row.ID, store.Stopping, reason); err != nil {
		s.log.Error("failed to mark a sandbox as stopping", "sandbox", row.ID, "error", err)
	}
	failpoint.Hit("scheduler.destroy.marked")
	if err := remove(ctx); err != nil {
		s.scheduleRemoval(failedRemoval{row: row, to: to, reason: reason, remove: remove})
		return fmt.Errorf("remove sandbox %s: %w", row.ID, err)
	}
	failpoint.Hit("scheduler.destroy.removed")
	s.releaseCapacity(row)
	err := s.setState(ctx, row.ID, to, reason)
	s.forgetFailedRemoval(row.ID)
	return err
}

// removeByID returns a function that removes a sandbox without a handle.
func (s *Scheduler) removeByID(id string) func(context.Context) error {
	return func(ctx context.Context) error { return s.opts.Driver.Remove(ctx, id) }
}

// setState changes the state of a row. A missing row, or one that has ended, stays unchanged.
func (s *Scheduler) setState(ctx context.Context, id string, to store.State, reason string) error {
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
		s.notifyStateChange(row)
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
