// Package filesync copies a workspace's files to and from a sandbox that cannot mount it. The host
// packs them and the sandbox unpacks them at claim; at release the sandbox packs and the host
// applies. The stream is a tar archive of directories, regular files and symbolic links. Other
// types are ignored.
//
// Both ends treat the stream as hostile: names stay below the directory, links are not followed,
// and the number, names and sizes of files are limited. [Apply] is atomic: it first receives
// everything into the directory [StageName] inside the workspace, and changes the workspace after
// that. [Recover] completes or discards an Apply that a crash interrupted.
//
// The package starts no goroutine. Calls for the same directory must not run concurrently. Errors
// are usererror errors or wrapped file system errors.
package filesync

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// StageName is the directory in a workspace where Apply works. It is not copied.
const StageName = ".orchestrator-carry"

// Limits for every workspace, whatever its Limits are.
const (
	MaxEntries   = 50_000
	maxNames     = 16 << 20 // bytes of all names together
	maxPath      = 4096
	maxPart      = 255
	keepRecord   = "ORCHESTRATOR.keep"
	endRecord    = "ORCHESTRATOR.end" // in the last header: an archive cut between two files looks complete
	permMask     = 0o777              // setuid, setgid and sticky are dropped
	ownerReads   = 0o400
	ownerEnters  = 0o700
	readDirBatch = 256
)

// Limits bound what is copied.
type Limits struct {
	// Bytes is the maximum of all files together. Each file is rounded up to whole pages, as an
	// in-memory file system does.
	Bytes int64
}

// Sum reports what was copied.
type Sum struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Kept is the number of unchanged files that were not sent.
	Kept int `json:"kept,omitempty"`
	// Room is the space in bytes that the files use in an in-memory file system.
	Room int64 `json:"-"`
}

// ErrKept reports that the stream omits a file as unchanged, but the host's file is missing or
// differs. The caller must send all files.
var ErrKept = errors.New("a file that was sent as unchanged is missing or differs")

// TooLargeError reports a workspace that exceeds the limits.
type TooLargeError struct {
	// Bytes is the minimum size of the workspace, and Limit the maximum that is allowed. Path is
	// the file that exceeded it.
	Bytes, Limit int64
	Path         string
}

// Error implements error. Callers that know the workspace's name should report the fields instead.
func (e *TooLargeError) Error() string { return "the files exceed the size limit" }

// Unwrap returns the errdefs class.
func (e *TooLargeError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// counter compares what was copied with the limits.
type counter struct {
	limits Limits
	sum    Sum
	names  int
}

// add counts an entry with size bytes of content.
func (t *counter) add(name string, size int64) error {
	const page = 4 << 10
	t.sum.Entries++
	t.names += len(name)
	t.sum.Bytes += size
	if size < 0 || size > t.limits.Bytes {
		return &TooLargeError{Bytes: t.sum.Room + max(size, 0), Limit: t.limits.Bytes, Path: name}
	}
	t.sum.Room += (size + page - 1) / page * page
	switch {
	case t.sum.Entries > MaxEntries:
		return usererror.Errorf(errdefs.ErrFailedPrecondition,
			"the workspace has more than %d files and directories: too many to copy",
			MaxEntries)
	case t.names > maxNames:
		return usererror.Errorf(errdefs.ErrFailedPrecondition,
			"the names of the workspace's files have more than %d bytes in total: too many to copy",
			maxNames)
	case t.sum.Room > t.limits.Bytes:
		return &TooLargeError{Bytes: t.sum.Room, Limit: t.limits.Bytes, Path: name}
	}
	return nil
}

// checkName returns an error unless name is a clean path below the directory.
func checkName(name string) error {
	bad := func() error {
		return usererror.Errorf(errdefs.ErrInvalidArgument,
			"invalid name %.100q in the stream of files: not below the workspace",
			name)
	}
	if name == "" || name == "." || len(name) > maxPath || path.IsAbs(name) ||
		path.Clean(name) != name || strings.IndexByte(name, 0) >= 0 {
		return bad()
	}
	top := true
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." || len(part) > maxPart || top && part == StageName {
			return bad()
		}
		top = false
	}
	return nil
}

// kindOf returns the kind of an entry, or 0 for types that are not copied.
func kindOf(mode fs.FileMode) byte {
	switch {
	case mode.IsRegular():
		return 'f'
	case mode.IsDir():
		return 'd'
	case mode.Type() == fs.ModeSymlink:
		return 'l'
	}
	return 0
}

// openRoot opens dir so that no path leads out of it.
func openRoot(dir string) (*os.Root, error) { return os.OpenRoot(dir) }
