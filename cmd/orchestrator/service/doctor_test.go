package service

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
)

func TestDoctorChecksSharedLimits(t *testing.T) {
	const missing = ""
	for _, c := range []struct {
		check  func(string) check
		text   string
		status string
		found  string
	}{
		{checkCores, "core\n", checkOK, "files"},
		{checkCores, "|/usr/lib/systemd/systemd-coredump %P %u\n", checkWarn, "systemd-coredump"},
		{checkCores, missing, checkWarn, "no such file"},
		{checkFiles, "9223372036854775807\n", checkOK, "memory"},
		{checkFiles, "2466170\n", checkWarn, "2466170"},
		{checkFiles, "x\n", checkWarn, "invalid"},
		{checkFiles, missing, checkWarn, "no such file"},
	} {
		file := filepath.Join(t.TempDir(), "setting")
		if c.text != missing {
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got := c.check(file)
		if got.Status != c.status || !strings.Contains(got.Found, c.found) ||
			(c.status == checkWarn && c.text != missing && c.text != "x\n") != (got.Fix != "") {
			t.Errorf("check of %q = %+v, want %s with %q and a fix only for a setting to change", c.text, got, c.status, c.found)
		}
	}
}

func TestSweepDoctorsRemovesLeftovers(t *testing.T) {
	c := config.Default()
	c.StateDir = t.TempDir()
	c.Docker.Host = "unix://" + filepath.Join(c.StateDir, "no-docker.sock")
	live, err := scratch.Make(c.StateDir, doctorPrefix)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Release()
	dead, unsure := filepath.Join(c.StateDir, doctorPrefix+"dead"), filepath.Join(c.StateDir, doctorPrefix+"unsure")
	for _, dir := range []string{
		filepath.Join(dead, "docker"),
		filepath.Join(unsure, standalone.EntryDirs[standalone.RuntimeDocker], "probe-1"),
	} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := sweepDoctors(t.Context(), c, slog.New(slog.DiscardHandler)); !errdefs.IsUnavailable(err) {
		t.Errorf("sweepDoctors() = %v, want Unavailable: an engine that is down may have a sandbox", err)
	}
	for dir, want := range map[string]bool{live.Path: true, dead: false, unsure: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", filepath.Base(dir), err == nil, want)
		}
	}
}
