package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// idsName is the symbolic link in a sandbox's bundle whose target is the first id of its range.
const idsName = "ids"

// newUser claims ids for a sandbox and makes its user namespace. The bundle names the ids before
// they are claimed.
func (d *Driver) newUser(_ context.Context, id string) (*userns.Namespace, error) {
	note := func(first uint32) error {
		err := os.Symlink(strconv.FormatUint(uint64(first), 10), filepath.Join(d.bundle(id), idsName))
		failpoint.Hit("oci.create.ids.noted")
		return err
	}
	first, err := d.ids.Claim(d.bundle(id), note)
	if err != nil {
		return nil, err
	}
	failpoint.Hit("oci.create.ids.claimed")
	return userns.New(first)
}

// returnIDs unmounts the root of a sandbox with a user namespace, and gives up its ids.
func (d *Driver) returnIDs(id string) error { return returnIDs(d.ids, d.bundle(id)) }

func returnIDs(ids userns.Ranges, bundle string) error {
	text, err := os.Readlink(filepath.Join(bundle, idsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("return ids: %w", err)
	}
	first, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return fmt.Errorf("return ids: %w", err)
	}
	if !ids.Holds(uint32(first), bundle) {
		return nil
	}
	if err := unmountRoot(ids.Root(uint32(first))); err != nil {
		return err
	}
	return ids.Release(uint32(first), bundle)
}

// limitedIO starts a runtime with resource limits of its own, which the sandbox inherits.
type limitedIO struct {
	*words
	limits []specs.POSIXRlimit
}

// prlimit is the program of util-linux that sets limits and executes another program.
const prlimit = "prlimit"

// Set makes cmd start the runtime through prlimit.
func (l *limitedIO) Set(cmd *exec.Cmd) {
	l.words.Set(cmd)
	args := []string{prlimit}
	for _, r := range l.limits {
		name := strings.ToLower(strings.TrimPrefix(r.Type, "RLIMIT_"))
		args = append(args, fmt.Sprintf("--%s=%d:%d", name, r.Soft, r.Hard))
	}
	cmd.Args = slices.Concat(args, []string{"--", cmd.Path}, cmd.Args[1:])
	cmd.Path, cmd.Err = exec.LookPath(prlimit)
}

// CheckUserNamespace implements runtime.UserNamespacer. The first call makes and removes a
// sandbox.
func (d *Driver) CheckUserNamespace(_ context.Context, class runtime.Class) error {
	if err := checkUserClass(class); err != nil {
		return err
	}
	return d.tryUser()
}

func checkUserClass(class runtime.Class) error {
	if class.OrDefault() == runtime.ClassContainer {
		return nil
	}
	return fmt.Errorf("a sandbox of class %s has a kernel of its own, which keeps ids apart; use user_namespace host: %w",
		class, errdefs.ErrFailedPrecondition)
}

// trialTime bounds the trial of a sandbox in a user namespace.
const trialTime = 20 * time.Second

// tryUserNamespace makes a sandbox in a user namespace, in a state directory of its own, waits
// for its guest and removes it.
func (d *Driver) tryUserNamespace(ctx context.Context, o Options) (err error) {
	if _, err := exec.LookPath(prlimit); err != nil {
		return host.Unfit("user namespaces need the program "+prlimit, "install util-linux")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, trialTime, fmt.Errorf("no sandbox within %s", trialTime))
	defer cancel()
	probe, err := scratch.Make(d.dir, probePrefix)
	if err != nil {
		return fmt.Errorf("try a user namespace: %w", err)
	}
	defer func() { err = errors.Join(err, probe.Remove()) }()
	o.StateDir = probe.Path
	trial, err := New(ctx, o)
	if err != nil {
		return fmt.Errorf("try a user namespace: %w", err)
	}
	image := filepath.Join(probe.Path, overlayName)
	if err := ocidriver.MakeProbeRoot(image, d.Guest); err != nil {
		return fmt.Errorf("try a user namespace: %w", err)
	}
	s, err := trial.Create(ctx, runtime.Spec{
		ID: probeID(probe.Path), Owner: trialOwner, Template: "probe", Image: runtime.Image{Ref: "probe", Root: image},
		UserNamespace: true,
	})
	if err == nil {
		conn, oerr := s.Open(ctx)
		if err = oerr; err == nil {
			err = conn.Close()
		}
		err = errors.Join(err, s.Destroy(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return host.Unfit("a sandbox in a user namespace failed ("+err.Error()+")",
			"use Linux 6.9 or later with the state directory on ext4, xfs or btrfs, or use user_namespace host")
	}
	return nil
}

// trialOwner owns the sandbox of a trial.
const trialOwner = "user-namespace-trial"
