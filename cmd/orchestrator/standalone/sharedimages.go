//go:build linux

package standalone

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/imageadmin"
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// sharedAge is the time after which an unused shared store is removed. It exceeds the life of every
// ephemeral server by far, so a store that is removed has no user.
const sharedAge = 7 * 24 * time.Hour

// lockSuffix ends the name of a shared store's lock file.
const lockSuffix = ".lock"

// ImportShared gives the image of an archive to a new state directory. The archive is imported and
// unpacked once, into a store below shared; state directories get links to that. Several processes
// may call it at the same time. It removes shared stores that were unused for a week.
func ImportShared(
	ctx context.Context,
	a *cli.App,
	c config.Config,
	path, ref, shared string,
) (list []v1.Image, err error) {
	if shared, err = filepath.Abs(shared); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(shared, 0o700); err != nil {
		return nil, cli.Refuse(errdefs.ErrFailedPrecondition, "directory of shared images: %w", err)
	}
	name, err := sharedName(path, ref)
	if err != nil {
		return nil, err
	}
	store := engine.DirsOf(c.StateDir).Images
	if _, err := os.Lstat(store); !errors.Is(err, fs.ErrNotExist) {
		return nil, cli.Refuse(errdefs.ErrFailedPrecondition,
			"state directory %s has images already: --shared is for a new one", c.StateDir)
	}
	lock, err := lockShared(ctx, filepath.Join(shared, name+lockSuffix))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	from := filepath.Join(shared, name)
	if err := fillShared(ctx, a, c, from, path, ref); err != nil {
		return nil, err
	}
	if err := sweepShared(shared, name, time.Now().Add(-sharedAge)); err != nil {
		a.Note("unused images not all removed: %v", err)
	}
	if err := MakeStateDir(c.StateDir); err != nil {
		return nil, err
	}
	if err := images.Share(from, store); err != nil {
		return nil, err
	}
	opened, err := images.Open(images.Options{Dir: store})
	if err != nil {
		return nil, err
	}
	for _, img := range opened.List() {
		list = append(list, imageadmin.Present(img)...)
	}
	return list, nil
}

// sharedName returns the name of the store for an archive and the image's name. Another file, or
// other content, has another one.
func sharedName(path, ref string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", cli.Refuse(errdefs.ErrNotFound, "%w", err)
	}
	inode := uint64(0)
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = s.Ino
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d %d", path, ref, info.Size(), info.ModTime().UnixNano(), inode))
	return hex.EncodeToString(sum[:16]), nil
}

// lockShared takes the lock of a shared store. Closing the file releases it.
func lockShared(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock shared images: %w", err)
	}
	if err := hostfile.Lock(ctx, f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock shared images: %w", err), f.Close())
	}
	return f, nil
}

// fillShared imports and unpacks the archive into the store dir, unless an earlier process did. The
// caller holds the store's lock.
func fillShared(ctx context.Context, a *cli.App, c config.Config, dir, archive, ref string) error {
	now := time.Now()
	if os.Chtimes(dir, now, now) == nil { // it gets its name when it is complete
		return nil
	}
	fresh := dir + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	store, err := images.Open(images.Options{Dir: fresh, Log: Logger(a.Stderr, c.Log)})
	if err != nil {
		return err
	}
	img, err := store.ImportPath(ctx, archive, ref)
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	got, err := store.Resolve(img.ID)
	if err == nil {
		_, err = store.Root(ctx, got)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	return os.Rename(fresh, dir)
}

// sweepShared removes the stores that were last used before old, except the one in use.
func sweepShared(shared, used string, old time.Time) error {
	entries, err := os.ReadDir(shared)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".new")
		info, err := e.Info()
		if err != nil || !e.IsDir() || name == used || info.ModTime().After(old) {
			continue
		}
		errs = append(errs, removeShared(filepath.Join(shared, name), filepath.Join(shared, e.Name())))
	}
	return errors.Join(errs...)
}

// removeShared removes a directory of the store, unless a process fills or links the store now.
func removeShared(store, dir string) error {
	f, err := os.OpenFile(store+lockSuffix, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	free, err := hostfile.TryLock(f, unix.LOCK_EX)
	if err != nil || !free {
		return err
	}
	// The lock file stays: another process may wait for it.
	return os.RemoveAll(dir)
}
