package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// ClaimBytes returns the size of the volume claims that leases of a template get for their
// workspaces, or 0 if the template has none.
func (s *Scheduler) ClaimBytes(template string) int64 {
	if k, ok := s.opts.Driver.(runtime.ClaimKeeper); ok {
		return k.ClaimBytes(template)
	}
	return 0
}

// CheckNativeWorkspace returns an *InvalidError of field workspace if AcquireQueued cannot give a
// workspace to a sandbox of the template.
func (s *Scheduler) CheckNativeWorkspace(template string) error {
	if s.ClaimBytes(template) == 0 {
		return nil
	}
	return &usererror.InvalidError{
		Field: "workspace", Class: errdefs.ErrFailedPrecondition,
		Message: "would be a volume claim, which native sandboxes do not mount: leave native or workspace out",
	}
}

// takeWithClaim creates a sandbox that has the volume claim of the lease's workspace, and records
// the lease. A warm sandbox cannot get one. If it fails, the caller has to release the quota.
func (s *Scheduler) takeWithClaim(ctx context.Context, r Request, t Template, st *templatePool) (*Lease, error) {
	if r.Mode == pool.Refuse {
		return nil, &usererror.InvalidError{
			Field: "when_empty", Class: errdefs.ErrFailedPrecondition,
			Message: "is refuse, and a volume claim needs a new sandbox: use wait or cold",
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	// Hold the workspace before a sandbox can have the volume: it has one writer.
	hold, claim, err := s.acquireClaim(ctx, id.String(), r, s.ClaimBytes(t.Name))
	if err != nil {
		return nil, err
	}
	t.Spec.Claim = &runtime.Claim{Workspace: claim.ID, Bytes: claim.Bytes, Made: claim.Made, ReadOnly: r.Lease.ReadOnly}
	t.claimedBy = store.Lease{
		Workspace: r.Lease.Workspace, Named: r.Lease.Named, ReadOnly: r.Lease.ReadOnly, Claim: true,
	}
	m, err := s.makeWithClaim(ctx, id.String(), r, t, st)
	r.queued(err)
	if err != nil {
		s.releaseAfterRemoval(id.String(), hold)
		return nil, err
	}
	failpoint.Hit("scheduler.claim.created")
	l, err := s.leaseWithClaim(ctx, m, hold, r)
	if err != nil {
		err = errors.Join(err, s.destroyUnleased(ctx, m, err))
		s.releaseAfterRemoval(m.id, hold)
		return nil, err
	}
	return l, nil
}

// acquireClaim holds the workspace for a sandbox with this id. If the workspace becomes a claim, it
// gets so many bytes of the caller's disk quota.
func (s *Scheduler) acquireClaim(
	ctx context.Context,
	id string,
	r Request,
	bytes int64,
) (*volumes.Hold, volumes.Claim, error) {
	if r.ReserveClaim != nil {
		leave, err := r.ReserveClaim(ctx, bytes)
		if err != nil {
			return nil, volumes.Claim{}, err
		}
		defer leave()
	}
	return s.opts.Volumes.AcquireClaim(ctx, r.Lease.Workspace, id, modeOf(r.Lease), bytes)
}

// holdClaims holds the volume claims of sandboxes that an earlier process created and did not
// lease. They may have the volumes until they are removed. It returns the holds by sandbox id.
func (s *Scheduler) holdClaims(ctx context.Context, rows []store.Sandbox) map[string]*volumes.Hold {
	holds := map[string]*volumes.Hold{}
	for _, row := range rows {
		if row.Caller != "" || !row.Lease.Claim {
			continue
		}
		hold, err := s.holdWorkspace(ctx, row.ID, row.Lease, nil)
		if err != nil {
			s.log.Error("failed to hold the workspace of a sandbox",
				"sandbox", row.ID, "workspace", row.Lease.Workspace, "error", err)
			continue
		}
		holds[row.ID] = hold
	}
	return holds
}

// releaseAfterRemoval releases the hold of a sandbox that was not leased. If the sandbox could not
// be removed, it may have the volume, and the hold is released when a retry has removed it. hold
// may be nil.
func (s *Scheduler) releaseAfterRemoval(id string, hold *volumes.Hold) {
	if hold == nil {
		return
	}
	s.mu.Lock()
	b, failed := s.failedRemovals[id]
	if failed {
		b.hold = hold
		s.failedRemovals[id] = b
	}
	s.mu.Unlock()
	if !failed {
		hold.Release()
	}
}

func (s *Scheduler) leaseWithClaim(ctx context.Context, m *instance, hold *volumes.Hold, r Request) (*Lease, error) {
	if err := s.opts.Volumes.ClaimMade(ctx, hold); err != nil {
		return nil, err
	}
	return s.recordLease(ctx, m, hold, r, false)
}

// makeWithClaim creates the sandbox. If the template is at its maximum, mode Wait asks again until
// ctx ends.
func (s *Scheduler) makeWithClaim(
	ctx context.Context,
	id string,
	r Request,
	t Template,
	st *templatePool,
) (*instance, error) {
	from := &poolDemand{nextWaiter: func(int) (uint64, bool) { return s.order.LastServed(r.Caller), true }}
	for {
		m, err := st.pool.Make(ctx, r.Caller, func(ctx context.Context) (*instance, error) {
			return s.createAs(ctx, id, t, from)
		})
		full, ok := errors.AsType[*pool.EmptyError](err)
		if !ok || r.Mode != pool.Wait {
			return m, err
		}
		select {
		case <-time.After(full.RetryAfter):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
