package docker

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
)

// The oldest supported engine, and the API it speaks. It introduced private cgroup namespaces.
const (
	minEngine = "20.10"
	minAPI    = "1.41"
	// apiReadOnlyNonRecursive is Engine 25: since then a read-only bind is recursively read-only
	// unless requested otherwise.
	apiReadOnlyNonRecursive = "1.44"
)

// engine is what a driver knows about its engine.
type engine struct {
	id       string
	version  string // "Docker Engine 20.10.24, API 1.41"
	api      string // negotiated between client and engine
	name     string // of the engine's host, for messages
	cgroupV2 bool
	// swapLimit: the engine can keep a container out of swap.
	swapLimit bool
	// remapped: root in a container is another user on the host, so it cannot use a run directory.
	remapped bool
}

// ask checks the engine and describes it.
func (d *Driver) ask(ctx context.Context) (engine, error) {
	v, err := d.api.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return engine{}, d.failed(ctx, "ask for its version", err)
	}
	if err := checkVersion(v); err != nil {
		return engine{}, err
	}
	api := strings.TrimPrefix(d.api.ClientVersion(), "v")
	if !apiAtLeast(api, minAPI) {
		return engine{}, refused("API %s is spoken with %s: unset %s, or set it to %s or more", api, describe(v),
			client.EnvOverrideAPIVersion, minAPI)
	}
	got, err := d.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return engine{}, d.failed(ctx, "ask for its abilities", err)
	}
	if err := checkInfo(got.Info); err != nil {
		return engine{}, err
	}
	return engine{
		id: got.Info.ID, version: describe(v), api: api,
		name: got.Info.Name, swapLimit: got.Info.SwapLimit, cgroupV2: got.Info.CgroupVersion == "2",
		remapped: hasSecurity(got.Info, "userns") || hasSecurity(got.Info, "rootless"),
	}, nil
}

func describe(v client.ServerVersionResult) string {
	return fmt.Sprintf("Docker Engine %s, API %s", v.Version, v.APIVersion)
}

// checkVersion refuses anything but a Docker Engine of a supported version.
func checkVersion(v client.ServerVersionResult) error {
	for _, c := range v.Components {
		if strings.Contains(strings.ToLower(c.Name), "podman") {
			return refused("found %s %s behind the Docker API: Docker Engine %s or newer is needed", c.Name, c.Version,
				minEngine)
		}
	}
	if v.Os != "linux" {
		return refused("found an engine for %q containers: one for linux is needed", v.Os)
	}
	if !apiAtLeast(v.APIVersion, minAPI) {
		return refused("found %s: Docker Engine %s (API %s) or newer is needed", describe(v), minEngine, minAPI)
	}
	return nil
}

// checkInfo refuses an engine that would run a sandbox without one of its caps.
func checkInfo(i system.Info) error {
	var missing []string
	need := func(has bool, what string) {
		if !has {
			missing = append(missing, what)
		}
	}
	need(i.MemoryLimit, "a memory cap")
	need(i.CPUCfsQuota, "a CPU quota")
	need(i.PidsLimit, "a pids cap")
	need(hasSecurity(i, "seccomp"), "seccomp")
	if len(missing) > 0 {
		return refused("the engine cannot enforce %s: enable the cgroup controllers memory, cpu and pids, and a kernel "+
			"with seccomp, on %s",
			strings.Join(missing, ", "), i.Name)
	}
	return nil
}

// checkSwap refuses an engine that cannot keep sandboxes out of swap, unless it runs on this host
// and the host has no swap.
func checkSwap(e engine, mode string) error {
	if e.swapLimit || mode == ModeLocal && swapOff("/proc/swaps") {
		return nil
	}
	return refused("the engine cannot keep sandboxes out of swap: turn swap off, or boot %s with swapaccount=1", e.name)
}

// swapOff reports whether file, which is /proc/swaps, lists no swap space.
func swapOff(file string) bool {
	b, err := os.ReadFile(file)
	return err == nil && len(strings.Fields(string(b))) > 0 && strings.Count(strings.TrimSpace(string(b)), "\n") == 0
}

// hasSecurity looks for an entry among the engine's security options, such as
// "name=seccomp,profile=default".
func hasSecurity(i system.Info, name string) bool {
	return slices.ContainsFunc(i.SecurityOptions, func(o string) bool {
		first, _, _ := strings.Cut(o, ",")
		return first == "name="+name || first == name
	})
}

// apiAtLeast compares "1.41" with "1.9" as numbers. A version that does not parse counts as old.
func apiAtLeast(have, want string) bool {
	major, minor, err := apiVersion(have)
	wantMajor, wantMinor, wantErr := apiVersion(want)
	if err != nil || wantErr != nil {
		return false
	}
	return major > wantMajor || major == wantMajor && minor >= wantMinor
}

func apiVersion(s string) (major, minor int, err error) {
	first, second, ok := strings.Cut(strings.TrimPrefix(s, "v"), ".")
	if !ok {
		return 0, 0, fmt.Errorf("API version %q: %w", s, errdefs.ErrInvalidArgument)
	}
	if major, err = strconv.Atoi(first); err != nil {
		return 0, 0, err
	}
	minor, err = strconv.Atoi(second)
	return major, minor, err
}
