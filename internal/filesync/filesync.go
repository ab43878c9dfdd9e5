// Package filesync moves the files of a workspace where they cannot be mounted: packed on the host and unpacked in the sandbox at claim, packed inside
// and applied on the host at release. What travels is a tar stream of folders, regular files and symbolic links; nothing else exists for it.
//
// Either end takes the other's stream for hostile: names stay below the folder, no link is followed, count, names and sizes are bounded, and nothing
// is half applied. On the host [Apply] first receives everything into a folder of its own inside the workspace, [StageName], and changes
// the workspace only once all has come. A host that dies in between is made good by [Recover]: what was whole is finished, the rest is dropped.
//
// The package starts no goroutine and knows nothing of leases. Calls for the same folder must not run at the same time. Errors are said.Error or
// those of the file system, wrapped.
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

// StageName is the folder in a workspace that an Apply works in. It is not carried.
const StageName = ".orchestrator-carry"

// Bounds that no workspace may exceed, whatever its Limits.
const (
	MaxEntries   = 50_000
	maxNames     = 16 << 20 // bytes of all names together
	maxPath      = 4096
	maxPart      = 255
	keepRecord   = "ORCHESTRATOR.keep"
	endRecord    = "ORCHESTRATOR.end" // the last header has it: an archive that was cut between two files looks whole
	permMask     = 0o777              // setuid, setgid and sticky are never given
	ownerReads   = 0o400
	ownerEnters  = 0o700
	readDirBatch = 256
)

// Limits bound what is carried.
type Limits struct {
	// Bytes is the most of all files together, each rounded up to whole pages as a file system in memory does.
	Bytes int64
}

// Sum says what was carried.
type Sum struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Kept are files that had not changed and did not travel.
	Kept int `json:"kept,omitempty"`
	// Room is what the files take in a file system in memory.
	Room int64 `json:"-"`
}

// ErrKept: the stream leaves out a file as unchanged that the host has not, or has otherwise. All of it has to be sent.
var ErrKept = errors.New("a file that is said to be unchanged is not there as it was")

// TooLargeError is a workspace that does not fit.
type TooLargeError struct {
	// Bytes it has at least, and may have; Path is the file with which it went over, "" where that is not one's fault.
	Bytes, Limit int64
	Path         string
}

// Error is for the log; who knows the workspace's name says it better.
func (e *TooLargeError) Error() string { return "the files do not fit" }

// Unwrap gives the class.
func (e *TooLargeError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// counter counts towards the limits.
type counter struct {
	limits Limits
	sum    Sum
	names  int
}

// add counts an entry with so many bytes of content.
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
		return usererror.Errorf(errdefs.ErrFailedPrecondition, "the workspace has more than %d files and folders, which cannot be carried", MaxEntries)
	case t.names > maxNames:
		return usererror.Errorf(errdefs.ErrFailedPrecondition, "the names of the workspace's files have more than %d bytes together, which cannot be carried", maxNames)
	case t.sum.Room > t.limits.Bytes:
		return &TooLargeError{Bytes: t.sum.Room, Limit: t.limits.Bytes, Path: name}
	}
	return nil
}

// checkName refuses a name that is not one below the folder.
func checkName(name string) error {
	bad := func() error {
		return usererror.Errorf(errdefs.ErrInvalidArgument, "the stream of files has a name %.100q, which is none below the workspace", name)
	}
	if name == "" || name == "." || len(name) > maxPath || path.IsAbs(name) || path.Clean(name) != name || strings.IndexByte(name, 0) >= 0 {
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

// kindOf is the type of a carried entry, 0 for what is not carried.
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

// openRoot opens the folder as a root that nothing leads out of.
func openRoot(dir string) (*os.Root, error) { return os.OpenRoot(dir) }
