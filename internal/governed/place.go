package governed

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/workspaces"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// notePlacement records the sandbox in which the call runs.
func (t *transaction) notePlacement(l *scheduler.Lease) {
	t.sandbox, t.record.Image = l.ID, t.s.imageOf(l.Template)
	if t.watch.Started != nil {
		t.watch.Started(l.ID)
	}
}

// findScope returns the existing sandbox that a call without its own names, directly or by its
// session. It returns "" if the call names none.
func (t *transaction) findScope(ctx context.Context) (sandbox string, err error) {
	if t.r.Sandbox != "" {
		_, err := t.s.opts.Sandboxes.Sandbox(ctx, t.principal, t.r.Sandbox)
		return t.r.Sandbox, err
	}
	session := t.session()
	if session == "" {
		return "", nil
	}
	l, err := t.s.opts.Sandboxes.FindSession(ctx, t.principal, session)
	if err != nil || l == nil {
		return "", err
	}
	return l.ID, nil
}

// homeSession and homeWorkspace serve profiles that keep files for each caller. Concurrent calls
// share the session, because a workspace has one writer.
const (
	homeSession   = "home"
	homeWorkspace = "home"
	// ownIdle is the idle time of a sandbox for a home or job. It is short because the files are in
	// the workspace and other callers need the capacity.
	ownIdle = 2 * time.Minute
)

// session returns the name of the call's session, or "". A job and a caller's home have sessions.
func (t *transaction) session() string {
	switch r := t.r; {
	case r.Session != "" || r.Sandbox != "":
		return r.Session
	case r.Job != "":
		return "job_" + r.Job
	case r.Workspace == "" && r.Template == "" && t.profile.Profile.Workspace == profile.WorkspaceCaller:
		return homeSession
	}
	return ""
}

// leaseSandbox returns the named sandbox, the session's sandbox or a new one. The caller calls done
// after the call.
func (t *transaction) leaseSandbox(ctx context.Context) (l *scheduler.Lease, done func(), err error) {
	if t.r.Sandbox != "" {
		l, err := t.s.opts.Sandboxes.FindLease(ctx, t.principal, t.r.Sandbox)
		return l, func() {}, err
	}
	r := v1.SandboxRequest{Template: t.r.Template, Workspace: t.r.Workspace, ReadOnly: t.r.ReadOnly}
	if r.Workspace == "" {
		if r.Workspace, err = t.workspace(ctx); err != nil {
			return nil, nil, err
		}
	}
	t.record.Workspace = r.Workspace
	a := core.Acquisition{Alias: homeLinks(t.profile.Profile.Paths)}
	t.applyNetwork(&a)
	if s := t.session(); s != "" {
		if t.r.Session == "" { // the caller did not ask for a session
			r.IdleMS = ownIdle.Milliseconds()
		}
		l, err := t.s.opts.Sandboxes.Session(ctx, t.principal, s, r, a)
		if err == nil {
			err = t.s.CheckNetwork(t.principal, l)
		}
		if err == nil {
			err = t.checkSessionMatches(ctx, l)
		}
		if err == nil {
			err = t.checkSessionNetwork(ctx, l)
		}
		return l, func() {}, err
	}
	// A background command ends with its lease, so the lease must outlive the call.
	a.OneShot = !t.ready.Background
	if l, err = t.acquire(ctx, r, a); err != nil {
		return nil, nil, err
	}
	if !a.OneShot {
		return l, func() {}, nil
	}
	return l, func() {
		if err := t.s.opts.Scheduler.End(ctx, l, scheduler.Finished, false); err != nil {
			// The call ran, so return the answer. The next start ends the lease.
			t.s.log.Error("failed to end a lease", "sandbox", l.ID, "error", err)
		}
	}, nil
}

// checkSessionMatches refuses a call whose template, workspace or access mode differs from its
// session's.
func (t *transaction) checkSessionMatches(ctx context.Context, l *scheduler.Lease) error {
	r := t.r
	if r.Template != "" && r.Template != l.Template {
		return usererror.Invalid(
			"template",
			"is %q, and the session's sandbox is of %q: leave it out, or use another session",
			r.Template,
			l.Template,
		)
	}
	if r.Workspace == "" && !r.ReadOnly {
		return nil
	}
	s, err := t.s.opts.Sandboxes.Sandbox(ctx, t.principal, l.ID)
	switch {
	case err != nil:
		return err
	case r.Workspace != "" && r.Workspace != s.Workspace:
		return usererror.Invalid(
			"workspace",
			"is %q, and the session has %q: leave it out, or use another session",
			r.Workspace,
			s.Workspace,
		)
	case r.ReadOnly && !s.ReadOnly:
		return usererror.Invalid("read_only", "is set, and the session may write: use another session")
	}
	return nil
}

// homeLinks returns the paths that a sandbox can provide as symlinks: those below the home
// directory that lead to the workspace. Tools map the paths of their inputs in any case.
func homeLinks(paths map[string]string) map[string]string {
	out := map[string]string{}
	for name, target := range paths {
		if strings.HasPrefix(name, wire.Home+"/") &&
			(target == wire.Workspace || strings.HasPrefix(target, wire.Workspace+"/")) {
			out[name] = target
		}
	}
	for name := range out { // a path below another link is reached through that link
		for up := path.Dir(name); up != wire.Home && up != "/"; up = path.Dir(up) {
			if _, ok := out[up]; ok {
				delete(out, name)
				break
			}
		}
	}
	return out
}

// acquire leases a sandbox for one call. If the workspace is in use only by one-shot calls or
// ending sandboxes, it waits its turn for at most the service's wait time.
func (t *transaction) acquire(ctx context.Context, r v1.SandboxRequest, a core.Acquisition) (*scheduler.Lease, error) {
	waiting, cancel := context.WithTimeout(ctx, t.s.opts.Wait)
	defer cancel()
	for pass := func() {}; ; {
		l, err := t.s.opts.Sandboxes.Acquire(ctx, t.principal.Keyless(), r, a)
		pass()
		busy, ok := errors.AsType[*usererror.InvalidError](err)
		if !ok || busy.Field != "workspace" || !errdefs.IsUnavailable(err) ||
			!t.s.workspaceFreesSoon(ctx, t.principal, r.Workspace) {
			return l, err
		}
		var late error
		if pass, late = t.s.opts.Volumes.Await(waiting, workspaces.DiskName(t.principal.Caller, r.Workspace), volumes.ReadWrite); late != nil {
			return nil, err
		}
	}
}

// workspaceFreesSoon reports whether only one-shot calls and ending sandboxes use the workspace.
func (s *Service) workspaceFreesSoon(ctx context.Context, p caller.Principal, workspace string) bool {
	w, err := s.opts.Workspaces.Get(ctx, p, workspace)
	if err != nil {
		return false
	}
	for _, id := range w.Sandboxes {
		row, err := s.opts.Scheduler.Row(ctx, p.Caller, id)
		if l := s.opts.Scheduler.Live(id); err == nil && !row.Lease.OneShot && l != nil && l.Ended() == "" {
			return false
		}
	}
	return true
}

// workspace returns the workspace that the profile assigns to a call that names none, or "". It
// creates the workspace on the first call.
func (t *transaction) workspace(ctx context.Context) (string, error) {
	var name string
	switch mode := t.profile.Profile.Workspace; {
	case t.r.Job != "":
		name = "job_" + t.r.Job
	case mode == profile.WorkspaceCaller && t.session() == homeSession:
		name = homeWorkspace
	default:
		return "", nil
	}
	_, err := t.s.opts.Workspaces.Create(ctx, t.principal.Keyless(), v1.WorkspaceRequest{Name: name})
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return "", fmt.Errorf("workspace of the call: %w", err)
	}
	return name, nil
}

// imageOf returns the image ID of a template.
func (s *Service) imageOf(template string) string {
	t, _ := s.opts.Scheduler.Template(template)
	return t.Spec.Image.ID
}
