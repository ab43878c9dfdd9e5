package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// driverName names this driver in the errors of package gvisor.
const driverName = ocidriver.Driver("docker")

const (
	// gvisorTime bounds the trial of a sandbox, which takes a second.
	gvisorTime = 30 * time.Second
	// gvisorName remembers a successful trial, in the driver's directory.
	gvisorName = "gvisor.json"
	// lockName is locked during a trial, in the driver's directory.
	lockName = "gvisor.lock"
	// maxLauncher bounds what is read of a program that may be the launcher, in bytes.
	maxLauncher = 64 << 10
	// proberPrefix starts the ids of trial sandboxes and the name of their owner.
	proberPrefix = "probe-"
)

// findGVisor returns why this engine runs no sandbox with gVisor, or nil if it does. A success is
// remembered until the engine, the programs or the boot changes. A failure is not, since somebody
// may have fixed it.
func (d *Driver) findGVisor(ctx context.Context) error {
	if d.mode != ModeLocal {
		return refused("class gvisor: the cgroups of a remote engine are out of reach, and nothing else would cap it: use " +
			"an engine on this host")
	}
	key, err := d.checkRunsc(ctx)
	if err != nil {
		return err
	}
	memo := gvisor.Memo{File: filepath.Join(d.dir, gvisorName)}
	if worked := false; memo.Load(key, &worked) && worked {
		return nil
	}
	if err := d.tryGVisor(ctx); err != nil {
		if errdefs.IsUnavailable(err) && !d.answers(ctx) {
			return fmt.Errorf("class gvisor: %w", err)
		}
		return refused("class gvisor: runtime %s of the engine cannot run a sandbox (%v): see the engine's log; ptrace "+
			"must be allowed "+
			"(kernel.yama.ptrace_scope below 3), or name a platform in its runtimeArgs", d.runsc, err)
	}
	if err := memo.Save(key, true); err != nil {
		d.log.Debug("failed to remember the gVisor probe; will probe again at the next start", "error", err)
	}
	return nil
}

// checkRunsc checks how the engine starts runsc. key identifies what a trial's result depends on.
func (d *Driver) checkRunsc(ctx context.Context) (key string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	runsc, err := gvisor.Look(driverName, "")
	if err != nil {
		return "", err
	}
	flags, _, err := runsc.Flags(ctx, driverName)
	if err != nil {
		return "", err
	}
	got, err := d.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return "", d.failed(ctx, "ask for its runtimes", err)
	}
	known, ok := got.Info.Runtimes[d.runsc]
	if !ok {
		return "", refused("class gvisor: the engine has no runtime %q: %s", d.runsc, d.advice(flags))
	}
	if !isLauncher(known.Path) {
		return "", refused("class gvisor: runtime %s of the engine is %s, which does not start in the sandbox's cgroup: %s",
			d.runsc, known.Path, d.advice(flags))
	}
	if bad := unfitArgs(known.Args, flags); bad != "" {
		return "", refused("class gvisor: the runtimeArgs of runtime %s %s: %s", d.runsc, bad, d.advice(flags))
	}
	return fmt.Sprintf("%s %s %s %s %s %q\n%s", runsc.Identity, d.engine.id, d.engine.version, d.runsc, known.Path,
		known.Args, launcher), nil
}

// advice says how to configure the engine so that it starts runsc correctly.
func (d *Driver) advice(flags []string) string {
	entry := map[string]any{"runtimes": map[string]any{d.runsc: map[string]any{"path": filepath.Join(d.dir, launcherName),
		"runtimeArgs": flags}}}
	text, err := json.Marshal(entry)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("put %s into /etc/docker/daemon.json and reload the engine (kill -HUP), then start the "+
		"orchestrator again", text)
}

// isLauncher reports whether a program is the launcher, wherever it is.
func isLauncher(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxLauncher {
		return false
	}
	text, err := os.ReadFile(path)
	return err == nil && string(text) == string(launcher)
}

// unfitArgs describes what is wrong with the flags that the engine passes to runsc, or returns "".
// The required flags must be among them, and none of them a second time with another value.
func unfitArgs(args, flags []string) string {
	name := func(flag string) string {
		n, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		return n
	}
	for _, f := range flags {
		if !slices.Contains(args, f) {
			return "lack " + f
		}
		for _, a := range args {
			if a != f && strings.HasPrefix(a, "-") && name(a) == name(f) {
				return fmt.Sprintf("say %s, where only %s is safe", a, f)
			}
		}
	}
	return ""
}

// answers reports whether the engine answers.
func (d *Driver) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_, err := d.api.Ping(ctx, client.PingOptions{})
	return err == nil
}

// prober is the owner of trial sandboxes.
func (d *Driver) prober() string { return proberPrefix + d.helper }

// sweepTries removes what interrupted trials left. If another process, such as doctor, holds the
// lock, the trials are its own and stay.
func (d *Driver) sweepTries(ctx context.Context) error {
	lock, err := gvisor.LockTrials(ctx, filepath.Join(d.dir, lockName), false)
	if err != nil || lock == nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	return d.removeTries(ctx)
}

func (d *Driver) removeTries(ctx context.Context) error {
	left, err := d.List(ctx, d.prober())
	if err != nil {
		return err
	}
	for _, f := range left {
		// A note that was cut short names no owner, so it is listed for every owner.
		if !strings.HasPrefix(f.ID, proberPrefix) {
			continue
		}
		if err := d.Remove(ctx, f.ID); err != nil {
			return err
		}
	}
	return nil
}

// tryGVisor creates a sandbox that contains only the guest, waits until the guest has dialled, and
// removes it.
func (d *Driver) tryGVisor(ctx context.Context) (err error) {
	lock, err := gvisor.LockTrials(ctx, filepath.Join(d.dir, lockName), true)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := d.removeTries(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, gvisorTime, fmt.Errorf("the guest did not answer within %s", gvisorTime))
	defer cancel()
	img, err := d.importEmpty(ctx, "dev", "dev/shm", "etc", "home", "home/user", "proc", "run", "sys", "tmp", "workspace")
	if err != nil {
		return err
	}
	defer d.cleanUp(ctx, "remove helper image", func(ctx context.Context) error {
		_, err := d.api.ImageRemove(ctx, img, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		return err
	})
	spec := runtime.Spec{
		ID: proberPrefix + uuid.NewString(), Owner: d.prober(), Template: "probe", Build: "probe", Class: runtime.ClassGVisor,
		Image: runtime.Image{Ref: "probe", ID: img}, Limits: runtime.Limits{}.WithDefaults(),
	}
	s, err := d.raise(ctx, spec, image{id: img})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Destroy(context.WithoutCancel(ctx))) }()
	conn, err := s.Open(ctx)
	if err != nil {
		return err
	}
	return conn.Close()
}
