package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Space is what workspaces may take: each of them, a caller's together, and all
// of what the host has.

// guardTime is how often the host's free room is looked at, which takes two
// microseconds. A writer puts a GiB or two a second into the page cache.
const guardTime = 100 * time.Millisecond

// ResizeWorkspace changes what a workspace holds at most. It grows while
// sandboxes have it, where the service may do that, and shrinks at rest.
func (e *Engine) ResizeWorkspace(ctx context.Context, call Call, name string, r v1.WorkspaceResize) (v1.Workspace, error) {
	w, err := e.findWorkspace(call, name)
	if err != nil {
		return v1.Workspace{}, err
	}
	if r.QuotaBytes <= 0 {
		return v1.Workspace{}, invalid("quota_bytes", "is %d: say how many octets it is to hold", r.QuotaBytes)
	}
	if err := e.checkQuota(r.QuotaBytes); err != nil {
		return v1.Workspace{}, err
	}
	leave, err := e.lockKey(ctx, spaceKey(call))
	if err != nil {
		return v1.Workspace{}, err
	}
	defer leave()
	if err := e.checkSpace(ctx, call, r.QuotaBytes-w.QuotaBytes); err != nil {
		return v1.Workspace{}, err
	}
	disk := diskName(call.Caller, name)
	got, err := e.opts.Volumes.Resize(ctx, disk, r.QuotaBytes)
	if err != nil {
		return v1.Workspace{}, workspaceError(spaceError(err), disk, name)
	}
	got.Name = name
	return presentWorkspace(got), nil
}

// spaceKey is who takes room: one at a time of each caller, so that two do not
// take the same. It may take as long as the caller's own work on a workspace,
// which is nobody else's matter.
func spaceKey(call Call) Call { return Call{Caller: call.Caller, Key: "\x00space"} }

// createWithinQuota is Volumes.Create within what the caller may have.
func (e *Engine) createWithinQuota(ctx context.Context, call Call, disk string, opt volumes.CreateOptions) (volumes.Workspace, error) {
	if err := e.checkQuota(opt.QuotaBytes); err != nil {
		return volumes.Workspace{}, err
	}
	if call.Caller != LocalCaller {
		leave, err := e.lockKey(ctx, spaceKey(call))
		if err != nil {
			return volumes.Workspace{}, err
		}
		defer leave()
		want := opt.QuotaBytes
		if want == 0 {
			want, _ = e.opts.Volumes.Quotas()
		}
		if err := e.checkSpace(ctx, call, want); err != nil {
			return volumes.Workspace{}, err
		}
	}
	w, err := e.opts.Volumes.Create(ctx, disk, opt)
	return w, spaceError(err)
}

// checkQuota refuses a size that nobody can have here; 0 is the usual one.
func (e *Engine) checkQuota(bytes int64) error {
	if bytes == 0 {
		return nil
	}
	_, most := e.opts.Volumes.Quotas()
	if most == 0 {
		most = quotadir.MaxBytes
	}
	if bytes < quotadir.MinBytes || bytes > most {
		return invalid("quota_bytes", "is %d: from %d to %d octets can be asked for (workspaces.max_quota)", bytes, int64(quotadir.MinBytes), most)
	}
	if m, why := e.opts.Volumes.Mechanism(); m == quotadir.None {
		return &InvalidError{Field: "quota_bytes", Class: errdefs.ErrFailedPrecondition,
			Message: strings.TrimSuffix("cannot be enforced here (workspaces.mechanism): ask without one; "+why, "; ")}
	}
	return nil
}

// checkSpace refuses more octets than the caller's quota has left for
// workspaces, and what their snapshots take of the host.
func (e *Engine) checkSpace(ctx context.Context, call Call, more int64) error {
	limit := e.diskQuota(call)
	if limit == 0 || more <= 0 {
		return nil
	}
	names, err := e.opts.Store.WorkspaceNames(ctx, call.Caller)
	if err != nil {
		return err
	}
	var used int64
	for disk := range names {
		if w, err := e.opts.Volumes.Get(disk); err == nil { // one whose making was cut short is not
			used += w.QuotaBytes
			list, err := e.opts.Volumes.Snapshots(disk)
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			for _, s := range list {
				used += s.Bytes
			}
		}
	}
	if used+more > limit {
		return &QuotaError{Quota: "disk_bytes", Limit: limit, Used: used, Unit: fmt.Sprintf("octets of workspaces and snapshots, and %d more are asked for", more)}
	}
	return nil
}

// diskQuota is what the quotas of a caller's workspaces may come to, 0 for all.
func (e *Engine) diskQuota(call Call) int64 {
	switch {
	case call.Caller == LocalCaller:
		return 0
	case call.Quotas.DiskBytes > 0:
		return call.Quotas.DiskBytes
	case call.Operator:
		return 0
	}
	return e.opts.Quotas.DiskBytes
}

// spaceError names the field of what was refused for its size.
func spaceError(err error) error {
	if small, ok := errors.AsType[*quotadir.NoRoomError](err); ok {
		return &InvalidError{Field: "quota_bytes", Class: errdefs.ErrFailedPrecondition,
			Message: fmt.Sprintf("is %d, and %d octets are in the workspace: remove files first", small.Bytes, small.Used)}
	}
	if errors.Is(err, unix.ENOSPC) {
		return usererror.Errorf(errdefs.ErrResourceExhausted, "the host has no room for this: tell its operator")
	}
	return err
}

// guardSpace holds workspaces while the host's disk is about to be full: see
// disk.Guard.
func (e *Engine) guardSpace() (tight bool) {
	dir := e.opts.Volumes.Dir()
	use, err := quotadir.Usage(dir)
	if err == nil {
		tight, err = quotadir.Guard(dir, quotadir.Reserve(use))
	}
	if err != nil {
		e.log.Warn("free room of the host not known", "path", dir, "error", err)
	}
	return tight
}

// runSpace does so all the time.
func (e *Engine) runSpace(ctx context.Context) error {
	t := time.NewTicker(guardTime)
	defer t.Stop()
	held := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		tight := e.guardSpace()
		switch {
		case tight && !held:
			e.log.Error("the host's disk is nearly full: nothing can be written to workspaces", "path", e.opts.Volumes.Dir())
		case held && !tight:
			e.log.Info("the host's disk has room for workspaces")
		}
		held = tight
	}
}
