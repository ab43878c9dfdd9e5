package engine

import (
	"context"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// idPrefix matches what can begin an id: 4 characters or more.
var idPrefix = regexp.MustCompile(`^[0-9a-f][0-9a-f-]{3,35}$`)

// validateSandboxName checks the name of a new sandbox; "" is none.
func validateSandboxName(name string) error {
	switch {
	case name == "":
		return nil
	case !sandboxNames.MatchString(name):
		return usererror.Invalid("name", "is %q: use 1 to 63 letters, digits, '.', '_' or '-', and begin with a letter or digit", name)
	case uuid.Validate(name) == nil:
		return usererror.Invalid("name", "is %q: it must not have the form of an id", name)
	}
	return nil
}

var sandboxNames = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// ResolveID returns the id of the caller's object that ref means: its id, the name of a live
// sandbox, or at least 4 characters that only one id of the caller begins with. If the request only
// reads, live sandboxes take precedence over ended ones; a change must not reach another sandbox
// because the one that was meant has ended. kind is the plural noun of the object's route, such as
// "sandboxes".
//
// If nothing of the caller matches, it returns ref, whatever other callers have: the request for it
// then fails as one for an unknown id does. If several match, the error is of class
// InvalidArgument.
func (e *Engine) ResolveID(
	ctx context.Context, p caller.Principal, kind, ref string, reads bool,
) (string, error) {
	if uuid.Validate(ref) == nil && len(ref) == len(uuid.Nil.String()) {
		return ref, nil
	}
	if kind == kindSandboxes {
		if id := e.sched.Named(p.Caller, ref); id != "" {
			return id, nil
		}
	}
	if !idPrefix.MatchString(ref) {
		return ref, nil
	}
	if kind == kindSandboxes && reads {
		if ids := e.sched.LiveIDs(p.Caller, ref); len(ids) > 0 {
			return onlyID(kind, ref, ids)
		}
	}
	ids, err := e.idsOf(ctx, p, kind, ref)
	if err != nil {
		return ref, nil //nolint:nilerr // The request itself reports it, for example that it is for operators only.
	}
	return onlyID(kind, ref, ids)
}

// ResolveSession is ResolveID for a session in the sandbox with this id.
func (e *Engine) ResolveSession(ctx context.Context, p caller.Principal, sandbox, ref string) (string, error) {
	if uuid.Validate(ref) == nil || !idPrefix.MatchString(ref) {
		return ref, nil
	}
	list, err := e.ShellSessions(ctx, p, sandbox)
	if err != nil {
		return ref, nil //nolint:nilerr // The request itself reports it.
	}
	return onlyID("sessions", ref, idsIn(list, func(s v1.ShellSession) string { return s.ID }))
}

// onlyID returns the only id that begins with ref, or ref if none does.
func onlyID(kind, ref string, ids []string) (string, error) {
	found, matches := ref, 0
	for _, id := range ids {
		if id == ref {
			return ref, nil
		}
		if strings.HasPrefix(id, ref) {
			found = id
			matches++
		}
	}
	if matches > 1 {
		return "", usererror.Errorf(
			errdefs.ErrInvalidArgument,
			"id %q is ambiguous: %d of your %s begin with it: give more of its characters",
			ref,
			matches,
			kind,
		)
	}
	return found, nil
}

// kindSandboxes is the only kind of object with names.
const kindSandboxes = "sandboxes"

// idsOf lists the ids of the objects that the caller may see and that ref may mean. Where lists of
// objects end early, it asks for the ids that begin with ref: what a list leaves out could make
// ref ambiguous.
func (e *Engine) idsOf(ctx context.Context, p caller.Principal, kind, ref string) (ids []string, err error) {
	visible := p.Caller
	if p.Operator {
		visible = "" // of all callers
	}
	switch kind {
	case kindSandboxes:
		return e.store.SandboxIDs(ctx, p.Caller, ref)
	case "shells":
		return e.shellIDs(ctx, p)
	case "jobs":
		return e.store.JobIDs(ctx, visible, ref)
	case "approvals":
		return e.store.ApprovalIDs(ctx, visible, ref)
	case "overlays":
		return e.overlayIDs(ctx, p)
	case "tokens":
		list, err := e.Callers.Tokens(ctx, p)
		return idsIn(list, func(t v1.Token) string { return t.ID }), err
	}
	return nil, nil
}

func idsIn[T any](list []T, id func(T) string) []string {
	ids := make([]string, len(list))
	for i, item := range list {
		ids[i] = id(item)
	}
	return ids
}

// shellIDs lists the shells of the caller's live sandboxes.
func (e *Engine) shellIDs(ctx context.Context, p caller.Principal) (ids []string, err error) {
	for _, sandbox := range e.sched.LiveIDs(p.Caller, "") {
		list, err := e.Shells(ctx, p, sandbox)
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsUnavailable(err) { // it may have ended since
			return nil, err
		}
		ids = append(ids, idsIn(list, func(s v1.Shell) string { return s.ID })...)
	}
	return ids, nil
}

func (e *Engine) overlayIDs(ctx context.Context, p caller.Principal) (ids []string, err error) {
	list, err := e.Workspaces.List(ctx, p)
	if err != nil {
		return nil, err
	}
	for _, w := range list {
		overlays, err := e.Workspaces.Overlays(ctx, p, w.Name)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		ids = append(ids, idsIn(overlays, func(o v1.Overlay) string { return o.ID })...)
	}
	return ids, nil
}
