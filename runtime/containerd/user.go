package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// userDir is the directory of a sandbox with a user namespace: it names the ids, and has the
// launcher of its OCI runtime.
func (d *Driver) userDir(id string) string { return filepath.Join(d.dir, "users", id) }

// launcher is the program that shims start as OCI runtime of a sandbox with a user namespace.
// The runtime has the sandbox's resource limits itself: without CAP_SYS_RESOURCE it may not set
// those of another user's process.
func (d *Driver) launcher(id string) string { return filepath.Join(d.userDir(id), "runtime") }

func (d *Driver) newUser(_ context.Context, id string) (*userns.Namespace, error) {
	if err := os.Mkdir(d.userDir(id), 0o700); err != nil {
		return nil, err
	}
	return ocidriver.ClaimUser(d.ids, d.userDir(id))
}

// useUser makes a recorded container use a user namespace: it mounts the root for its users,
// makes the launcher, and replaces the recorded configuration.
func (d *Driver) useUser(ctx context.Context, spec runtime.Spec, root []*types.Mount, user *userns.Namespace) error {
	layers, err := layersOf(root)
	if err != nil {
		return err
	}
	if err := mountRoot(d.ids.Root(user.First), layers, user); err != nil {
		return err
	}
	config, err := d.configOf(ctx, spec, user)
	if err != nil {
		return err
	}
	limits := ocispec.Rlimits(spec.Limits)
	daemon, err := peerOf(ctx, d.address)
	if err != nil {
		return err
	}
	if err := ocidriver.FitRlimitsOf(daemon, limits); err != nil {
		return err
	}
	config.Process.Rlimits = nil
	script := fmt.Sprintf("#!/bin/sh\nexec %s %s '%s' \"$@\"\n", ocidriver.Prlimit,
		strings.Join(ocidriver.PrlimitArgs(limits), " "), strings.ReplaceAll(d.container.binary, "'", `'\''`))
	if err := os.WriteFile(d.launcher(spec.ID), []byte(script), 0o700); err != nil { // a program
		return fmt.Errorf("launcher: %w", err)
	}
	text, err := typeurl.MarshalAny(config)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	whole, cancel := uncut(ctx)
	defer cancel()
	_, err = d.api.ContainerService().Update(whole, containers.Container{ID: spec.ID, Spec: text}, "spec")
	if err != nil {
		return fmt.Errorf("record configuration: %w", err)
	}
	return nil
}

// layersOf returns the directories of an image's root, the upper one first.
func layersOf(root []*types.Mount) ([]string, error) {
	if len(root) == 1 && root[0].Type == "bind" {
		return []string{root[0].Source}, nil
	}
	if len(root) == 1 && root[0].Type == "overlay" {
		for _, o := range root[0].Options {
			if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
				return strings.Split(dirs, ":"), nil
			}
		}
	}
	return nil, fmt.Errorf("user namespaces need snapshots in directories: use the snapshotter overlayfs, "+
		"or user_namespace host: %w", errdefs.ErrFailedPrecondition)
}

// mountRoot mounts the layers for the users of a namespace, read-only.
func mountRoot(target string, layers []string, user *userns.Namespace) error {
	return livemount.WithClones(target, layers, livemount.Options{ReadOnly: true, UserNS: user.File()},
		func(clones []*os.File) error {
			paths := make([]string, len(clones))
			for i, c := range clones {
				paths[i] = fmt.Sprintf("/proc/self/fd/%d", c.Fd())
			}
			err := unix.Mount("overlay", target, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV,
				"lowerdir="+strings.Join(paths, ":"))
			if err != nil {
				return fmt.Errorf("mount root at %s: %w", target, err)
			}
			return nil
		})
}

// returnUser removes what newUser and useUser made. The sandbox is dead.
func (d *Driver) returnUser(ctx context.Context, id string) error {
	unmount := func(root string) error { return livemount.Sweep(ctx, root, stateTime) }
	if err := ocidriver.ReturnIDs(d.ids, d.userDir(id), unmount); err != nil {
		return err
	}
	return os.RemoveAll(d.userDir(id))
}

// CheckUserNamespace implements runtime.UserNamespacer. It checks what costs no sandbox.
func (d *Driver) CheckUserNamespace(_ context.Context, class runtime.Class) error {
	if err := ocidriver.CheckUserClass(class); err != nil {
		return err
	}
	if _, err := exec.LookPath(ocidriver.Prlimit); err != nil {
		return host.Unfit("user namespaces need the program "+ocidriver.Prlimit, "install util-linux")
	}
	user, err := userns.New(userns.FirstID)
	if err != nil {
		return err
	}
	defer func() { _ = user.Close() }()
	err = livemount.WithClones(d.dir, []string{d.dir}, livemount.Options{UserNS: user.File()},
		func([]*os.File) error { return nil })
	if errors.Is(err, livemount.ErrNoIDMap) {
		return host.Unfit(err.Error(), "have the state directory on ext4, xfs or btrfs, or use user_namespace host")
	}
	return err
}
