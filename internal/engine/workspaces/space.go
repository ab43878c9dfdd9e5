package workspaces

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// This file limits the space of workspaces: of each, of all workspaces of a caller, and of the
// host.

// guardTime is the interval of checks of the host's free space. A check takes about 2 µs. A writer
// fills the page cache with one or two GiB a second.
const guardTime = 100 * time.Millisecond

// Resize changes the size limit of a workspace. A workspace in use can grow where the
// service supports it; shrinking requires that it is not in use.
func (s *Service) Resize(
	ctx context.Context,
	p caller.Principal,
	name string,
	r v1.WorkspaceResize,
) (v1.Workspace, error) {
	w, err := s.Find(p, name)
	if err != nil {
		return v1.Workspace{}, err
	}
	if r.QuotaBytes <= 0 {
		return v1.Workspace{}, usererror.Invalid("quota_bytes", "is %d: must be a positive number of bytes", r.QuotaBytes)
	}
	if err := s.checkQuota(r.QuotaBytes); err != nil {
		return v1.Workspace{}, err
	}
	leave, err := s.opts.Keys.LockKey(ctx, SpaceKey(p))
	if err != nil {
		return v1.Workspace{}, err
	}
	defer leave()
	if err := s.checkSpace(ctx, p, r.QuotaBytes-w.QuotaBytes); err != nil {
		return v1.Workspace{}, err
	}
	disk := DiskName(p.Caller, name)
	got, err := s.opts.Volumes.Resize(ctx, disk, r.QuotaBytes)
	if err != nil {
		return v1.Workspace{}, Error(spaceError(err), disk, name)
	}
	got.Name = name
	return PresentWorkspace(got), nil
}

// SpaceKey returns the key that serializes a caller's requests for space, so that two requests
// cannot both take the rest of the quota. The lock is per caller because a request may take long.
func SpaceKey(p caller.Principal) caller.Principal {
	return caller.Principal{Caller: p.Caller, Key: "\x00space"}
}

// createWithinQuota creates a workspace if the caller's disk quota allows it.
func (s *Service) createWithinQuota(
	ctx context.Context,
	p caller.Principal,
	disk string,
	opt volumes.CreateOptions,
) (volumes.Workspace, error) {
	if err := s.checkQuota(opt.QuotaBytes); err != nil {
		return volumes.Workspace{}, err
	}
	if p.Caller != caller.LocalCaller {
		leave, err := s.opts.Keys.LockKey(ctx, SpaceKey(p))
		if err != nil {
			return volumes.Workspace{}, err
		}
		defer leave()
		want := opt.QuotaBytes
		if want == 0 {
			want, _ = s.opts.Volumes.Quotas()
		}
		if err := s.checkSpace(ctx, p, want); err != nil {
			return volumes.Workspace{}, err
		}
	}
	w, err := s.opts.Volumes.Create(ctx, disk, opt)
	return w, spaceError(err)
}

// ReserveClaim returns a *QuotaError if a volume claim of so many bytes for the caller's workspace
// exceeds the disk quota. A workspace that is a claim already counts. The caller's other requests
// for space wait until leave is called: record the claim first.
func (s *Service) ReserveClaim(
	ctx context.Context,
	p caller.Principal,
	name string,
	bytes int64,
) (leave func(), err error) {
	leave, err = s.opts.Keys.LockKey(ctx, SpaceKey(p))
	if err != nil {
		return nil, err
	}
	w, err := s.Find(p, name)
	if err == nil && w.Claim == "" {
		err = s.checkSpace(ctx, p, bytes-w.QuotaBytes)
	}
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// checkQuota validates the requested size of a workspace. 0 selects the default size.
func (s *Service) checkQuota(bytes int64) error {
	if bytes == 0 {
		return nil
	}
	_, most := s.opts.Volumes.Quotas()
	if most == 0 {
		most = quotadir.MaxBytes
	}
	if bytes < quotadir.MinBytes || bytes > most {
		return usererror.Invalid(
			"quota_bytes",
			"is %d: must be from %d to %d bytes (workspaces.max_quota)",
			bytes,
			int64(quotadir.MinBytes),
			most,
		)
	}
	if m, why := s.opts.Volumes.Mechanism(); m == quotadir.None {
		return &usererror.InvalidError{Field: "quota_bytes", Class: errdefs.ErrFailedPrecondition,
			Message: strings.TrimSuffix("cannot be enforced here (workspaces.mechanism): ask without one; "+why, "; ")}
	}
	return nil
}

// checkSpace returns a *QuotaError if more bytes exceed the caller's disk quota, which covers
// workspaces and snapshots.
func (s *Service) checkSpace(ctx context.Context, p caller.Principal, more int64) error {
	limit := s.opts.Callers.DiskQuota(p)
	if limit == 0 || more <= 0 {
		return nil
	}
	names, err := s.opts.Store.WorkspaceNames(ctx, p.Caller)
	if err != nil {
		return err
	}
	var used int64
	for disk := range names {
		if w, err := s.opts.Volumes.Get(disk); err == nil { // skip a workspace whose creation was interrupted
			used += w.QuotaBytes
			list, err := s.opts.Volumes.Snapshots(disk)
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			for _, snap := range list {
				used += snap.Bytes
			}
		}
	}
	if used+more > limit {
		return &caller.QuotaError{
			Quota: "disk_bytes",
			Limit: limit,
			Used:  used,
			Unit:  fmt.Sprintf("bytes of workspaces and snapshots, and %d more are requested", more),
		}
	}
	return nil
}

// spaceError converts errors about sizes and a full host for the caller.
func spaceError(err error) error {
	if small, ok := errors.AsType[*quotadir.NoRoomError](err); ok {
		return &usererror.InvalidError{Field: "quota_bytes", Class: errdefs.ErrFailedPrecondition,
			Message: fmt.Sprintf("is %d, and the workspace holds %d bytes: remove files first", small.Bytes, small.Used)}
	}
	if errors.Is(err, unix.ENOSPC) {
		return usererror.Errorf(errdefs.ErrResourceExhausted, "the host's disk is full: contact its operator")
	}
	return err
}

// guardSpace blocks writes to workspaces while the host's disk is nearly full and reports whether
// it does. See quotadir.Guard.
func (s *Service) guardSpace(ctx context.Context) (tight bool) {
	dir := s.opts.Volumes.Dir()
	use, err := quotadir.Usage(dir)
	if err == nil {
		tight, err = quotadir.Guard(context.WithoutCancel(ctx), dir, quotadir.Reserve(use))
	}
	if err != nil {
		s.opts.Log.Warn("failed to read the free space of the host", "path", dir, "error", err)
	}
	return tight
}

// Run calls guardSpace regularly until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	t := time.NewTicker(guardTime)
	defer t.Stop()
	held := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		tight := s.guardSpace(ctx)
		switch {
		case tight && !held:
			s.opts.Log.Error("host disk is nearly full: writes to workspaces are blocked", "path", s.opts.Volumes.Dir())
		case held && !tight:
			s.opts.Log.Info("host disk has space again: writes to workspaces are allowed")
		}
		held = tight
	}
}
