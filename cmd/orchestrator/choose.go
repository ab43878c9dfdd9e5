package main

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

// The runtimes by name.
const (
	runtimeAuto       = "auto"
	runtimeDocker     = "docker"
	runtimeContainerd = "containerd"
	runtimeOCI        = "oci"
)

// runtimeNames is for those who have to name one.
const runtimeNames = "auto, docker, containerd or oci"

// pingTime bounds the question whether Docker answers.
const pingTime = 2 * time.Second

// drivers makes drivers for one state directory.
type drivers struct {
	config   config.Config
	stateDir string
	guest    string
	log      *slog.Logger
}

// noted is where each runtime keeps an entry for every sandbox.
var noted = map[string]string{
	runtimeOCI: runtimeOCI, runtimeDocker: filepath.Join(runtimeDocker, "sandboxes"), runtimeContainerd: filepath.Join(runtimeContainerd, "cells"),
}

// used are the runtimes that have left a folder in the state directory; if only
// is not auto, that one alone.
func (d drivers) used(only string) []string {
	var names []string
	for _, name := range []string{runtimeOCI, runtimeContainerd, runtimeDocker} {
		if _, err := os.Stat(filepath.Join(d.stateDir, name)); err == nil && (only == runtimeAuto || only == name) {
			names = append(names, name)
		}
	}
	return names
}

// finder finds what is left where the database was lost, in the used runtimes.
func (d drivers) finder(only string) remains.Finder {
	f := remains.Finder{
		Runtimes: map[string]string{}, Workspaces: engine.DirsOf(d.stateDir).Workspaces, Log: d.log,
		AuditHead: filepath.Join(d.stateDir, audit.HeadFile), AuditLog: filepath.Join(d.stateDir, store.AuditFile),
		Open: func(ctx context.Context, name string) (runtime.Driver, error) {
			got, _, err := d.open(ctx, name)
			return got, err
		},
	}
	for _, name := range d.used(only) {
		f.Runtimes[name] = filepath.Join(d.stateDir, noted[name])
	}
	return f
}

// open makes the driver of that name and says what it is.
func (d drivers) open(ctx context.Context, name string) (runtime.Driver, string, error) {
	switch name {
	case runtimeDocker:
		got, err := docker.New(ctx, docker.Options{
			Host: d.config.Docker.Host, StateDir: d.stateDir, GuestPath: d.guest, Mode: d.config.Docker.Mode, GVisor: d.config.Docker.GVisor, Log: d.log,
		})
		if err != nil {
			return nil, "", err
		}
		return got, got.Engine() + ", " + got.Mode(), nil
	case runtimeContainerd:
		got, err := containerd.New(ctx, d.containerdOptions())
		if err != nil {
			return nil, "", err
		}
		info := got.Info()
		return got, info, nil
	case runtimeOCI:
		got, err := oci.New(ctx, oci.Options{StateDir: d.stateDir, GuestPath: d.guest, Runtime: d.config.OCI.Runtime, GVisor: d.config.OCI.GVisor, Log: d.log})
		if err != nil {
			return nil, "", err
		}
		info := got.Info()
		return got, info, nil
	}
	return nil, "", refuse(errdefs.ErrInvalidArgument, "runtime %q: use "+runtimeNames, name)
}

func (d drivers) containerdOptions() containerd.Options {
	c := d.config.Containerd
	return containerd.Options{
		Address: c.Address, Namespace: c.Namespace, Snapshotter: c.Snapshotter, Runtime: c.Runtime, GVisor: c.GVisor,
		StateDir: d.stateDir, GuestPath: d.guest, Log: d.log,
	}
}

// choose makes the driver that is configured. auto takes the runtime of what
// is there already, then Docker where it answers and is fit, then oci, and
// containerd only if told to; why says what decided.
func (d drivers) choose(ctx context.Context, live []store.Sandbox) (got runtime.Driver, why string, err error) {
	had, err := runtimeOf(live)
	if err != nil {
		return nil, "", err
	}
	if name := d.config.Runtime; name != runtimeAuto {
		if had != "" && had != name {
			return nil, "", refuse(errdefs.ErrFailedPrecondition, "runtime is %s, but the state directory %s has live sandboxes of %s: start with --runtime %s, or take them down first with `orchestrator down --runtime %s`",
				name, d.stateDir, had, had, had)
		}
		got, what, err := d.open(ctx, name)
		return got, "as configured, " + what, err
	}
	if had != "" {
		got, what, err := d.open(ctx, had)
		if err != nil {
			return nil, "", fmt.Errorf("the state directory has live sandboxes of runtime %s, which cannot be used now; bring it back, or remove them with `orchestrator down --runtime %s` when it is: %w", had, had, err)
		}
		return got, "its sandboxes are live, " + what, nil
	}
	host := dockerHost(d.config.Docker.Host)
	no := ""
	switch err := dockerAnswers(ctx, host); {
	case err != nil:
		no = "no Docker Engine answers on " + host
		d.log.Debug("docker not used", "host", host, "error", err)
	default:
		got, what, err := d.open(ctx, runtimeDocker)
		if err == nil {
			return got, what, nil
		}
		no = "Docker on " + host + " cannot be used: " + oneLine(err.Error())
		d.log.Warn("docker answers but cannot be used", "host", host, "error", err)
	}
	got, what, err := d.open(ctx, runtimeOCI)
	if err != nil {
		return nil, "", fmt.Errorf("no runtime can be used: %s; oci: %w", no, err)
	}
	return got, no + ", " + what, nil
}

// runtimeOf is the one runtime of all live sandboxes, or "".
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
	return "", refuse(errdefs.ErrFailedPrecondition, "the state directory has live sandboxes of %s: take one kind down with `orchestrator down --runtime %s`",
		strings.Join(names, " and "), names[0])
}

// dockerHost is where the docker driver would look.
func dockerHost(configured string) string {
	if configured != "" {
		return configured
	}
	if v := os.Getenv("DOCKER_HOST"); v != "" {
		return v
	}
	return "unix:///var/run/docker.sock"
}

// dockerAnswers says whether something answers as an engine does, within
// pingTime; a dead engine may accept connections and say nothing. Where TLS or
// another transport is between, connecting has to do.
func dockerAnswers(ctx context.Context, host string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pingTime, refuse(errdefs.ErrUnavailable, "no answer within %s", pingTime))
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
		return nil // the driver knows
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
