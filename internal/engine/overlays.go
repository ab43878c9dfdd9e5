package engine

import (
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Access modes of a lease's workspace.
const (
	modeWrite   = "rw"
	modeRead    = "ro"
	modeOverlay = "overlay"
)

// resolveMode validates mode and sets read_only from it.
func resolveMode(r *v1.SandboxRequest) error {
	switch r.Mode {
	case "":
		return nil
	case modeWrite, modeRead, modeOverlay:
	default:
		return usererror.Invalid("mode", "is %q: use rw, ro or overlay", r.Mode)
	}
	switch {
	case r.Workspace == "":
		return usererror.Invalid("mode", "needs a workspace")
	case r.ReadOnly && r.Mode != modeRead:
		return usererror.Invalid("mode", "is %q, and read_only is set: leave one of them out", r.Mode)
	}
	r.ReadOnly = r.Mode == modeRead
	return nil
}

// modeOf returns the access mode of a lease's workspace, or "" without a workspace.
func modeOf(l store.Lease) string {
	switch {
	case l.Workspace == "":
		return ""
	case l.Overlay:
		return modeOverlay
	case l.ReadOnly:
		return modeRead
	}
	return modeWrite
}
