package oci

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func (d *Driver) newUser(_ context.Context, id string) (*userns.Namespace, error) {
	return ocidriver.ClaimUser(d.ids, d.bundle(id))
}

// limitedIO starts a runtime with resource limits of its own, which the sandbox inherits.
type limitedIO struct {
	*words
	limits []specs.POSIXRlimit
}

// Set makes cmd start the runtime through prlimit.
func (l *limitedIO) Set(cmd *exec.Cmd) {
	l.words.Set(cmd)
	cmd.Args = slices.Concat([]string{ocidriver.Prlimit}, ocidriver.PrlimitArgs(l.limits), []string{cmd.Path}, cmd.Args[1:])
	cmd.Path, cmd.Err = exec.LookPath(ocidriver.Prlimit)
}

// CheckUserNamespace implements runtime.UserNamespacer. The first call makes and removes a
// sandbox. So do calls after a failure, at growing intervals.
func (d *Driver) CheckUserNamespace(_ context.Context, class runtime.Class) error {
	if err := ocidriver.CheckUserClass(class); err != nil {
		return err
	}
	return d.userTrial.do(time.Now())
}

// Limits of the time after a failed trial in which its error is repeated.
const (
	trialPause    = 10 * time.Second
	trialMaxPause = 10 * time.Minute
)

// trial remembers that try succeeded, for good, and that it failed, for a time that doubles. Safe
// for concurrent use; one call tries while others wait.
type trial struct {
	try func() error

	mu    sync.Mutex
	done  bool
	err   error         // of the last try
	pause time.Duration // after the last failure
	next  time.Time
}

// do returns the error of a try that began now, or of an earlier one.
func (t *trial) do(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done || now.Before(t.next) {
		return t.err
	}
	if t.err = t.try(); t.err == nil {
		t.done = true
		return nil
	}
	t.pause = min(max(2*t.pause, trialPause), trialMaxPause)
	t.next = now.Add(t.pause)
	return t.err
}

// trialTime bounds the trial of a sandbox in a user namespace.
const trialTime = 20 * time.Second

// tryUserNamespace makes a sandbox in a user namespace, in a state directory of its own, waits
// for its guest and removes it.
func (d *Driver) tryUserNamespace(ctx context.Context, o Options) (err error) {
	if _, err := exec.LookPath(ocidriver.Prlimit); err != nil {
		return host.Unfit("user namespaces need the program "+ocidriver.Prlimit, "install util-linux")
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
