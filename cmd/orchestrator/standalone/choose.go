//go:build linux

package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/remains"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/containerd"
	"github.com/sandbox-orchestrator/orchestrator/runtime/docker"
	"github.com/sandbox-orchestrator/orchestrator/runtime/oci"
)

// Names of the runtimes.
const (
	RuntimeAuto       = "auto"
	RuntimeDocker     = "docker"
	RuntimeContainerd = "containerd"
	RuntimeOCI        = "oci"
	RuntimeKubernetes = "kubernetes"
)

// runtimeNames lists the names for error messages.
const runtimeNames = "auto, docker, containerd, oci or kubernetes"

// pingTime bounds the wait for Docker's answer.
const pingTime = 2 * time.Second

// Drivers opens drivers for one state directory.
type Drivers struct {
	Config   config.Config
	StateDir string
	Guest    string
	// Epoch and Superseded are for runtime kubernetes with an election; see kubernetes.Options.
	Epoch      int64
	Superseded func(error)
	Log        *slog.Logger
}

// EntryDirs holds the directory in which each runtime keeps an entry for every sandbox.
var EntryDirs = map[string]string{
	RuntimeOCI:        RuntimeOCI,
	RuntimeDocker:     filepath.Join(RuntimeDocker, "sandboxes"),
	RuntimeContainerd: filepath.Join(RuntimeContainerd, "cells"),
	RuntimeKubernetes: RuntimeKubernetes,
}

// UsedRuntimes returns the runtimes that have a directory in the state directory. If only is not
// "auto", it returns at most that one.
func (d Drivers) UsedRuntimes(only string) []string {
	var names []string
	for _, name := range []string{RuntimeOCI, RuntimeContainerd, RuntimeDocker, RuntimeKubernetes} {
		if _, err := os.Stat(filepath.Join(d.StateDir, name)); err == nil && (only == RuntimeAuto || only == name) {
			names = append(names, name)
		}
	}
	return names
}

// Finder returns a finder of what the used runtimes left, for a state directory whose database was
// lost.
func (d Drivers) Finder(only string) remains.Finder {
	f := remains.Finder{
		Runtimes: map[string]string{}, Workspaces: engine.DirsOf(d.StateDir).Workspaces, Log: d.Log,
		AuditHead: filepath.Join(d.StateDir, audit.HeadFile), AuditLog: filepath.Join(d.StateDir, store.AuditFile),
		Open: func(ctx context.Context, name string) (runtime.Driver, error) {
			got, _, err := d.Open(ctx, name)
			return got, err
		},
	}
	for _, name := range d.UsedRuntimes(only) {
		f.Runtimes[name] = filepath.Join(d.StateDir, EntryDirs[name])
	}
	return f
}

// Open opens the named driver and describes it.
func (d Drivers) Open(ctx context.Context, name string) (runtime.Driver, string, error) {
	switch name {
	case RuntimeDocker:
		got, err := docker.New(ctx, docker.Options{
			Host: d.Config.Docker.Host, StateDir: d.StateDir, GuestPath: d.Guest,
			Mode: d.Config.Docker.Mode, GVisor: d.Config.Docker.GVisor, Log: d.Log,
		})
		if err != nil {
			return nil, "", err
		}
		return got, got.Engine() + ", " + got.Mode(), nil
	case RuntimeContainerd:
		got, err := containerd.New(ctx, d.containerdOptions())
		if err != nil {
			return nil, "", err
		}
		info := got.Info()
		return got, info, nil
	case RuntimeOCI:
		got, err := oci.New(
			ctx,
			oci.Options{
				StateDir:  d.StateDir,
				GuestPath: d.Guest,
				Runtime:   d.Config.OCI.Runtime,
				GVisor:    d.Config.OCI.GVisor,
				Log:       d.Log,
			},
		)
		if err != nil {
			return nil, "", err
		}
		info := got.Info()
		return got, info, nil
	case RuntimeKubernetes:
		return d.openKubernetes(ctx)
	}
	return nil, "", cli.Refuse(errdefs.ErrInvalidArgument, "runtime %q: use "+runtimeNames, name)
}

func (d Drivers) containerdOptions() containerd.Options {
	c := d.Config.Containerd
	return containerd.Options{
		Address: c.Address, Namespace: c.Namespace, Snapshotter: c.Snapshotter, Runtime: c.Runtime, GVisor: c.GVisor,
		StateDir: d.StateDir, GuestPath: d.Guest, Log: d.Log,
	}
}

// Choose opens the configured driver. "auto" takes the runtime of the live sandboxes, then Docker
// if it answers and can be used, then oci. It takes containerd for live sandboxes only. why says
// what decided.
func (d Drivers) Choose(ctx context.Context, live []store.Sandbox) (got runtime.Driver, why string, err error) {
	had, err := runtimeOf(live)
	if err != nil {
		return nil, "", err
	}
	if name := d.Config.Runtime; name != RuntimeAuto {
		if had != "" && had != name {
			return nil, "", cli.Refuse(
				errdefs.ErrFailedPrecondition,
				"runtime is %s, but the state directory %s has live sandboxes of %s: "+
					"start with --runtime %s, or take them down first with `orchestrator down --runtime %s`",
				name, d.StateDir, had, had, had,
			)
		}
		got, what, err := d.Open(ctx, name)
		return got, "as configured, " + what, err
	}
	if had != "" {
		got, what, err := d.Open(ctx, had)
		if err != nil {
			return nil, "", fmt.Errorf(
				"the state directory has live sandboxes of runtime %s, which cannot be used now; "+
					"bring it back, or remove them with `orchestrator down --runtime %s` when it is: %w",
				had, had, err,
			)
		}
		return got, "its sandboxes are live, " + what, nil
	}
	host := DockerHost(d.Config.Docker.Host)
	var no string // why not Docker
	switch err := DockerAnswers(ctx, host); {
	case err != nil:
		no = "no Docker Engine answers on " + host
		d.Log.Debug("docker not used", "host", host, "error", err)
	default:
		got, what, err := d.Open(ctx, RuntimeDocker)
		if err == nil {
			return got, what, nil
		}
		no = "Docker on " + host + " cannot be used: " + cli.OneLine(err.Error())
		d.Log.Warn("docker answers but cannot be used", "host", host, "error", err)
	}
	got, what, err := d.Open(ctx, RuntimeOCI)
	if err != nil {
		return nil, "", fmt.Errorf("no runtime can be used: %s; oci: %w", no, err)
	}
	return got, no + ", " + what, nil
}

// runtimeOf returns the runtime of all live sandboxes, or "" if there are none. Several runtimes
// are an error.
func runtimeOf(live []store.Sandbox) (string, error) {
	var names []string
	for _, s := range live {
		if !slices.Contains(names, s.Runtime) {
			names = append(names, s.Runtime)
		}
	}
	switch len(names) {
	case 0:
		return "", nil
	case 1:
		return names[0], nil
	}
	slices.Sort(names)
	return "", cli.Refuse(
		errdefs.ErrFailedPrecondition,
		"the state directory has live sandboxes of %s: take one kind down with `orchestrator down --runtime %s`",
		strings.Join(names, " and "),
		names[0],
	)
}

// DockerHost returns the address that the docker driver uses.
func DockerHost(configured string) string {
	if configured != "" {
		return configured
	}
	if v := os.Getenv("DOCKER_HOST"); v != "" {
		return v
	}
	return "unix:///var/run/docker.sock"
}

// DockerAnswers returns an error unless a Docker Engine answers within pingTime. A dead engine may
// accept connections and never answer. With TLS or another transport it only connects.
func DockerAnswers(ctx context.Context, host string) error {
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		pingTime,
		cli.Refuse(errdefs.ErrUnavailable, "no answer within %s", pingTime),
	)
	defer cancel()
	u, err := url.Parse(host)
	if err != nil {
		return err
	}
	network, address := "tcp", u.Host
	switch u.Scheme {
	case "unix":
		network, address = "unix", u.Path
	case "tcp", "http", "https":
	default:
		return nil // the driver checks it
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	if network == "tcp" && (os.Getenv("DOCKER_TLS_VERIFY") != "" || u.Scheme == "https") {
		conn, err := dial(ctx, "", "")
		if err != nil {
			return err
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered %d", resp.StatusCode)
	}
	return nil
}
