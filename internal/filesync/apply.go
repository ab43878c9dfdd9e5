package filesync

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// The stage contains file contents by number, new directories and links, and the list of all
// entries, so that the following steps need no more space. The list gets its final name once
// everything has arrived. From then on the list defines the workspace's content, and an interrupted
// Apply is completed.
const (
	listName = StageName + "/list"
	listPart = StageName + "/list.part"
	// reserveName is a file that reserves space for directory entries.
	reserveName = StageName + "/room"
)

// Owner is the user and group that get the files.
type Owner struct{ UID, GID int }

// Apply makes dir match the stream: it removes files that the stream does not have, except those
// that are never copied. If the stream is cut, too long or invalid, Apply changes nothing.
// [ErrKept] asks the caller to send all files.
func Apply(ctx context.Context, r io.Reader, dir string, limits Limits, owner Owner) (Sum, error) {
	if err := Recover(ctx, dir, owner); err != nil {
		return Sum{}, err
	}
	root, err := openRoot(dir)
	if err != nil {
		return Sum{}, fmt.Errorf("apply files: %w", err)
	}
	defer func() { _ = root.Close() }()
	sum, err := receiveStage(ctx, root, r, limits, owner)
	if err != nil {
		err = fmt.Errorf("apply files: %w", asUserError(err))
		return sum, errors.Join(err, dropStage(context.WithoutCancel(ctx), dir))
	}
	failpoint.Hit("carry.apply.staged")
	// From here on, this call or Recover completes it.
	return sum, finishApply(context.WithoutCancel(ctx), dir, root, owner)
}

// asUserError explains ENOSPC and EDQUOT to the caller, whose files would otherwise be lost.
func asUserError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return usererror.Errorf(errdefs.ErrFailedPrecondition,
			"the workspace has no space for a temporary second copy of the sandbox's files: remove files, or resize it")
	}
	return err
}

// Recover completes an Apply that received everything, and discards one that did not. Without a
// stage it does nothing.
func Recover(ctx context.Context, dir string, owner Owner) error {
	root, err := openRoot(dir)
	if err != nil {
		return fmt.Errorf("recover files: %w", err)
	}
	defer func() { _ = root.Close() }()
	info, err := root.Lstat(StageName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("recover files: %w", err)
	case !isOurStage(info):
		// A command made it while it had the workspace mounted: ignore its content.
		return dropStage(ctx, dir)
	}
	if _, err := root.Lstat(listName); errors.Is(err, fs.ErrNotExist) {
		return dropStage(ctx, dir)
	} else if err != nil {
		return fmt.Errorf("recover files: %w", err)
	}
	return finishApply(ctx, dir, root, owner)
}

// isOurStage reports whether this service made the stage. Commands never run as this service's
// user.
func isOurStage(info fs.FileInfo) bool {
	uid, ok := ownerOf(info)
	return ok && info.IsDir() && uid == os.Geteuid() && info.Mode().Perm() == 0o700
}

// dropStage removes the stage, if there is one.
func dropStage(ctx context.Context, dir string) error {
	r, err := safefile.Open(dir, safefile.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	if err := r.Remove(ctx, StageName, true); err != nil && !errors.Is(err, fs.ErrNotExist) && !isNotFound(err) {
		return err
	}
	return nil
}

// receiveStage writes the stream into the stage.
func receiveStage(ctx context.Context, root *os.Root, r io.Reader, limits Limits, owner Owner) (Sum, error) {
	if err := root.Mkdir(StageName, 0o700); err != nil {
		return Sum{}, err
	}
	if err := root.Chmod(StageName, 0o700); err != nil { // Mkdir's mode depends on the umask.
		return Sum{}, err
	}
	part, err := root.OpenFile(listPart, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Sum{}, err
	}
	defer func() { _ = part.Close() }()
	list := bufio.NewWriter(part)
	enc, next, names := json.NewEncoder(list), 1, int64(0)
	there := map[string]bool{".": true} // directories that stay
	sum, err := readStream(ctx, r, limits, func(e entry, content io.Reader) error {
		names += int64(len(e.Name))
		switch {
		case e.Kind == "d" && there[path.Dir(e.Name)] && isDir(root, e.Name):
			there[e.Name] = true
		case e.Kind == "d":
			e.Index = next
			next++
			if err := root.Mkdir(contentName(e.Index), 0o700); err != nil {
				return err
			}
		case e.Kind == "l" && there[path.Dir(e.Name)] && isLink(root, e.Name, e.Link):
		case e.Kind == "l":
			e.Index = next
			next++
			if err := stageLink(root, e, owner); err != nil {
				return err
			}
		case e.Kind == "f" && e.Keep:
			if err := checkKept(root, e); err != nil {
				return err
			}
		case e.Kind == "f":
			e.Index = next
			next++
			if err := stageFile(root, e, content, owner); err != nil {
				return fmt.Errorf("%.200q: %w", e.Name, err)
			}
		}
		return enc.Encode(encodeNames(e))
	})
	if err != nil {
		return sum, err
	}
	failpoint.Hit("carry.apply.received")
	if err := reserveSpace(root, names, int64(sum.Entries)); err != nil {
		return sum, err
	}
	if err := errors.Join(list.Flush(), part.Sync(), part.Close()); err != nil {
		return sum, err
	}
	return sum, root.Rename(listPart, listName)
}

// checkKept returns ErrKept unless a file that is not sent still exists with the same size.
func checkKept(root *os.Root, e entry) error {
	info, err := root.Lstat(e.Name)
	if err != nil || !info.Mode().IsRegular() || info.Size() != e.Size {
		return fmt.Errorf("%.200q: %w", e.Name, ErrKept)
	}
	return nil
}

// stageFile writes a file to the stage with its owner, mode and time.
func stageFile(root *os.Root, e entry, content io.Reader, owner Owner) error {
	f, err := root.OpenFile(contentName(e.Index), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(writeContent(f, content, e.Size), f.Chown(owner.UID, owner.GID),
		f.Chmod(fs.FileMode(e.Mode)), f.Close())
	if err != nil {
		return err
	}
	return root.Chtimes(contentName(e.Index), e.Time, e.Time)
}

// stageLink makes a symbolic link in the stage.
func stageLink(root *os.Root, e entry, owner Owner) error {
	if err := root.Symlink(e.Link, contentName(e.Index)); err != nil {
		return err
	}
	return root.Lchown(contentName(e.Index), owner.UID, owner.GID)
}

// reserveSpace allocates what the entries may need in their directories until they are moved there.
// If the file system cannot allocate, the space is not guaranteed.
func reserveSpace(root *os.Root, names, entries int64) error {
	const head, least = 16, 64 << 10
	f, err := root.OpenFile(reserveName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	// Double it, because directory blocks are half full after a split.
	err = unix.Fallocate(int(f.Fd()), 0, 0, 2*(names+entries*head)+least)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

func isLink(root *os.Root, name, target string) bool {
	is, err := root.Readlink(name)
	return err == nil && is == target
}

func isDir(root *os.Root, name string) bool {
	info, err := root.Lstat(name)
	return err == nil && info.IsDir()
}

func contentName(index int) string { return path.Join(StageName, strconv.Itoa(index)) }
