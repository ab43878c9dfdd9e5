package v1

import "time"

// Overlay is what one lease with mode "overlay" changed of a workspace, kept
// apart from it until it is committed or discarded. Its id is the sandbox's.
type Overlay struct {
	ID        string    `json:"id"`
	Workspace string    `json:"workspace"`
	CreatedAt time.Time `json:"created_at"`
	// Live: its sandbox is not over. EndedAt is when it was, and ExpiresAt when
	// the overlay is discarded by itself.
	Live      bool       `json:"live"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// Changes is how many paths it changes, 0 while it is live.
	Changes int `json:"changes"`
}

// Diff is what an overlay changed: compared with the workspace as it is now, or
// if it is live with what its sandbox began with.
type Diff struct {
	Overlay Overlay `json:"overlay"`
	// Changes are sorted by path. Truncated: there are more; the numbers count
	// all.
	Changes   []Change `json:"changes"`
	Added     int      `json:"added"`
	Changed   int      `json:"changed"`
	Removed   int      `json:"removed"`
	Truncated bool     `json:"truncated,omitempty"`
}

// Change is one path that an overlay changed.
type Change struct {
	// Path is relative to the workspace. Bytes that are not UTF-8 are replaced,
	// and PathBase64 has them as they are.
	Path       string `json:"path"`
	PathBase64 string `json:"path_base64,omitempty"`
	// Kind is "added", "changed" or "removed". Types are "file", "dir",
	// "symlink" or "other".
	Kind       string `json:"kind"`
	Type       string `json:"type,omitempty"`
	TypeBefore string `json:"type_before,omitempty"`
	Size       int64  `json:"size"`
	SizeBefore int64  `json:"size_before"`
	Mode       string `json:"mode,omitempty"` // octal, "0644"
	ModeBefore string `json:"mode_before,omitempty"`
	// Diff is the difference of text, unified; of a link that of where it leads.
	// Binary: there is none. Truncated: it is not all of it.
	Diff      string `json:"diff,omitempty"`
	Binary    bool   `json:"binary,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`
	// Dropped: a device, FIFO or socket, which is never committed.
	Dropped bool `json:"dropped,omitempty"`
	// Conflict: others changed it since the sandbox began.
	Conflict *Conflict `json:"conflict,omitempty"`
}

// Conflict tells who else changed a path: "sandbox ID", "overlay ID", "the
// host", or "" where it is not known.
type Conflict struct {
	By string     `json:"by,omitempty"`
	At *time.Time `json:"at,omitempty"`
}

// DiffRequest asks for a diff.
type DiffRequest struct {
	// Paths, with what is below them; none is everything.
	Paths []string `json:"paths,omitempty"`
	// Text asks for the differences of text.
	Text bool `json:"text,omitempty"`
}

// CommitRequest says what of an overlay is committed.
type CommitRequest struct {
	// Paths, with what is below them; none is everything. One that is not
	// among the changes is an error.
	Paths []string `json:"paths,omitempty"`
	// Force commits also what others changed meanwhile: theirs is lost.
	Force bool `json:"force,omitempty"`
	// End ends the overlay's sandbox first, if it is not over.
	End bool `json:"end,omitempty"`
}

// Commit says what was committed of an overlay.
type Commit struct {
	ID    string   `json:"id"`
	Paths []string `json:"paths"`
	// Dropped are devices, FIFOs and sockets.
	Dropped []string `json:"dropped"`
	// Left is how many changes stay in the overlay; with 0 it is gone.
	Left int `json:"left"`
}

// SnapshotRequest makes a snapshot.
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
	// SizeBytes is what it takes of the host's disk, where that is known.
	SizeBytes int64 `json:"size_bytes,omitempty"`
}
