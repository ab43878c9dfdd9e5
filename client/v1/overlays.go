package v1

import "time"

// Overlay holds the changes that a lease with mode "overlay" made to a workspace. They stay
// separate until committed or discarded. Its id is the sandbox's id.
type Overlay struct {
	ID        string    `json:"id"`
	Workspace string    `json:"workspace"`
	CreatedAt time.Time `json:"created_at"`
	// Live reports that the sandbox still exists. EndedAt is when it ended, and ExpiresAt when the
	// overlay will be discarded.
	Live      bool       `json:"live"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// Changes is the number of changed paths, or 0 while the overlay is live.
	Changes int `json:"changes"`
}

// Diff lists the changes in an overlay. A live overlay is compared with the files that its sandbox
// started with, any other with the current workspace.
type Diff struct {
	Overlay Overlay `json:"overlay"`
	// Changes are sorted by path. Truncated reports that some are left out; Added, Changed and
	// Removed count all of them.
	Changes   []Change `json:"changes"`
	Added     int      `json:"added"`
	Changed   int      `json:"changed"`
	Removed   int      `json:"removed"`
	Truncated bool     `json:"truncated,omitempty"`
}

// Change is one path that an overlay changed.
type Change struct {
	// Path is relative to the workspace. Bytes that are not UTF-8 are replaced; PathBase64 then
	// holds the exact bytes.
	Path       string `json:"path"`
	PathBase64 string `json:"path_base64,omitempty"`
	// Kind is "added", "changed" or "removed". Type and TypeBefore are "file", "dir", "symlink" or
	// "other".
	Kind       string `json:"kind"`
	Type       string `json:"type,omitempty"`
	TypeBefore string `json:"type_before,omitempty"`
	Size       int64  `json:"size"`
	SizeBefore int64  `json:"size_before"`
	Mode       string `json:"mode,omitempty"` // octal, "0644"
	ModeBefore string `json:"mode_before,omitempty"`
	// Diff is the unified diff of the text, or of the target of a symbolic link. Binary reports
	// that there is none because the content is binary. Truncated reports that Diff is incomplete.
	Diff      string `json:"diff,omitempty"`
	Binary    bool   `json:"binary,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`
	// Dropped reports a device, FIFO or socket, which is never committed.
	Dropped bool `json:"dropped,omitempty"`
	// Conflict is set if the path changed in the workspace since the sandbox started.
	Conflict *Conflict `json:"conflict,omitempty"`
}

// Conflict reports what else changed a path: "sandbox ID", "overlay ID", "the host", or "" if
// unknown.
type Conflict struct {
	By string     `json:"by,omitempty"`
	At *time.Time `json:"at,omitempty"`
}

// DiffRequest asks for the changes in an overlay.
type DiffRequest struct {
	// Paths selects files and directories with their content. Empty selects everything.
	Paths []string `json:"paths,omitempty"`
	// Text asks for diffs of text files.
	Text bool `json:"text,omitempty"`
}

// CommitRequest selects the changes to commit.
type CommitRequest struct {
	// Paths selects files and directories with their content. Empty selects everything. A path
	// without a change is an error.
	Paths []string `json:"paths,omitempty"`
	// Force also commits paths with a conflict and overwrites the other change.
	Force bool `json:"force,omitempty"`
	// End destroys the overlay's sandbox first, if it still exists.
	End bool `json:"end,omitempty"`
}

// Commit is the result of committing an overlay.
type Commit struct {
	ID    string   `json:"id"`
	Paths []string `json:"paths"`
	// Dropped are devices, FIFOs and sockets, which are not committed.
	Dropped []string `json:"dropped"`
	// Left is the number of changes that remain in the overlay. At 0 the overlay is deleted.
	Left int `json:"left"`
}

// SnapshotRequest asks for a snapshot of a workspace.
type SnapshotRequest struct {
	Label string `json:"label,omitempty"`
}

// RestoreRequest names a snapshot by its id or label.
type RestoreRequest struct {
	Snapshot string `json:"snapshot"`
}

// Snapshot is a copy of a workspace's files at one time.
type Snapshot struct {
	ID        string    `json:"id"`
	Workspace string    `json:"workspace"`
	Label     string    `json:"label,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// SizeBytes is the disk space that the snapshot uses, or 0 if unknown.
	SizeBytes int64 `json:"size_bytes,omitempty"`
}
