package runtime

import "context"

// Claim mounts the volume of a workspace at WorkspaceDir when a sandbox is created.
type Claim struct {
	// Workspace is the id of the workspace. ClaimName makes the volume's name from it.
	Workspace string
	// Bytes is the recorded size of the volume. Create makes a missing one with it, whatever the
	// template's size is.
	Bytes int64
	// Made reports that an earlier sandbox had the volume. If it is missing, its files are lost, and
	// Create fails with FailedPrecondition. Otherwise Create makes it.
	Made     bool
	ReadOnly bool
}

// ClaimName returns the name of the volume claim of the workspace with this id.
func ClaimName(workspace string) string { return "orchestrator-workspace-" + workspace }

// ClaimKeeper is implemented by drivers that can keep workspaces in volumes of a cluster.
type ClaimKeeper interface {
	// ClaimBytes returns the size of the volumes for leases of a template. It is 0 if the template
	// has no volumes: files are copied.
	ClaimBytes(template string) int64
	// RemoveClaim deletes the volume claim of a workspace and returns when it is gone. It succeeds
	// if there is none.
	RemoveClaim(ctx context.Context, workspace string) error
}
