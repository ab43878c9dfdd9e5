// Package gvisor finds a runsc program, and the platform on which a driver can run a sandbox with
// it.
//
// Each driver starts sandboxes of class gvisor differently, so the driver supplies the trial run.
// This package finds the program, reads its flags and platforms, tries the platforms in order, and
// remembers the result until the program changes or the host boots. It starts no goroutine. Errors
// have class FailedPrecondition if the host lacks something, and say what to install.
package gvisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	// DefaultProgram is the program that Look finds for an empty name.
	DefaultProgram = "runsc"
	// trialTime limits the trial of one platform, which takes a quarter to half a second. On a host
	// that is a virtual machine, platform kvm can hang.
	trialTime = 4 * time.Second
	// lastTrialTime limits the trial of the last platform, and the queries of the program's flags
	// and version.
	lastTrialTime = 30 * time.Second
)

// Program is a runsc that ran a sandbox on this host.
type Program struct {
	Path     string   `json:"path"`
	Release  string   `json:"release"`
	Platform string   `json:"platform"`
	Flags    []string `json:"flags"`
}

// Binary is an installed runsc.
type Binary struct {
	Path string
	// Identity changes with the file and with each boot of the host.
	Identity string
}

// Look finds the program with this name or path. For an empty name it looks for DefaultProgram.
func Look(driver ocidriver.Driver, name string) (Binary, error) {
	if name == "" {
		name = DefaultProgram
	}
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return Binary{}, unfit(driver, name+" is not found",
			"install gVisor (apt-get install runsc, or https://gvisor.dev/docs/user_guide/install/)")
	}
	info, err := os.Stat(path)
	if err != nil {
		return Binary{}, fmt.Errorf("class gvisor: %w", err)
	}
	boot, err := ocidriver.BootID()
	if err != nil {
		return Binary{}, fmt.Errorf("class gvisor: %w", err)
	}
	return Binary{Path: path, Identity: fmt.Sprintf("%s %d %d %s", path, info.Size(), info.ModTime().UnixNano(), boot)},
		nil
}

// Flags returns the flags of the program that sandboxes need, and its platforms, the preferred one
// first.
func (b Binary) Flags(ctx context.Context, driver ocidriver.Driver) (flags, platforms []string, err error) {
	text, err := exec.CommandContext(ctx, b.Path, "flags").CombinedOutput()
	if err != nil {
		return nil, nil, unfit(driver, fmt.Sprintf("%s flags: %v", b.Path, err), "install a working runsc")
	}
	flags, missing := ocispec.GVisorFlags(string(text))
	if missing != "" {
		return nil, nil, unfit(driver, fmt.Sprintf("%s has no flag --%s", b.Path, missing), "install a newer runsc")
	}
	return flags, ocispec.GVisorPlatforms(string(text)), nil
}

func (b Binary) release(ctx context.Context, driver ocidriver.Driver) (string, error) {
	version, err := exec.CommandContext(ctx, b.Path, "--version").CombinedOutput()
	if err != nil {
		return "", unfit(driver, fmt.Sprintf("%s --version: %v", b.Path, err), "install a working runsc")
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(version)), "\n")
	return strings.TrimSpace(line), nil
}

func unfit(driver ocidriver.Driver, lack, fix string) error {
	return driver.Unfit("class gvisor: "+lack, fix)
}

// Search finds a Program for one driver.
type Search struct {
	// Driver names the driver in errors.
	Driver ocidriver.Driver
	// Memo stores the program that was found. Scope is what the result depends on in addition to
	// the program and the boot, such as a daemon's version.
	Memo  Memo
	Scope string
	// Try runs a sandbox with the program on p.Platform for at most bound, and removes it.
	Try func(ctx context.Context, p *Program, bound time.Duration) error
	// Down reports whether a trial failed because the container engine is down. The search then
	// fails with class Unavailable. It is nil without an engine.
	Down func(ctx context.Context, err error) bool
	Log  *slog.Logger
}

// Find returns a program that works, from the memo or from a new trial. Failures are not stored, so
// that the next process tries again.
func (s *Search) Find(ctx context.Context, name string) (*Program, error) {
	b, err := Look(s.Driver, name)
	if err != nil {
		return nil, err
	}
	key := b.Identity + "\n" + s.Scope
	known := &Program{}
	if s.Memo.Load(key, known) && known.Path != "" {
		return known, nil
	}
	p, err := s.tryAll(ctx, b)
	if err != nil {
		return nil, err
	}
	if err := s.Memo.Save(key, p); err != nil {
		s.Log.Debug("failed to remember the gVisor platform; will probe again at the next start", "error", err)
	}
	return p, nil
}

// tryAll tries the platforms in order.
func (s *Search) tryAll(ctx context.Context, b Binary) (*Program, error) {
	ask, cancel := context.WithTimeout(ctx, lastTrialTime)
	defer cancel()
	release, err := b.release(ask, s.Driver)
	if err != nil {
		return nil, err
	}
	flags, platforms, err := b.Flags(ask, s.Driver)
	if err != nil {
		return nil, err
	}
	var failed []string
	for i, platform := range platforms {
		bound := trialTime
		if i == len(platforms)-1 {
			bound = lastTrialTime
		}
		p := &Program{Path: b.Path, Release: release, Platform: platform, Flags: flags}
		err := s.Try(ctx, p, bound)
		if err == nil {
			return p, nil
		}
		if s.Down != nil && s.Down(ctx, err) {
			return nil, fmt.Errorf("class gvisor: %w", err)
		}
		s.Log.Debug("gVisor platform does not work", "platform", platform, "error", err)
		failed = append(failed, platform+": "+err.Error())
	}
	return nil, unfit(s.Driver, release+" cannot run a sandbox ("+strings.Join(failed, "; ")+")",
		"allow ptrace (kernel.yama.ptrace_scope below 3) or give it /dev/kvm")
}
