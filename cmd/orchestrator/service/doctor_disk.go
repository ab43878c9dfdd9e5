package service

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestbin"
	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// checkQuota checks the quota mechanism in the directory of the workspaces, or where that would be.
func checkQuota(ctx context.Context, c config.Config) check {
	const name = "workspace quota"
	dir := engine.DirsOf(c.StateDir).Workspaces
	for _, err := os.Stat(dir); err != nil && dir != "/"; _, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	want := c.Workspaces.Mechanism
	if want == string(quotadir.None) {
		return check{
			name,
			checkWarn,
			"none, as configured: a workspace can fill the host's disk",
			"set workspaces.mechanism to auto",
		}
	}
	m, why := quotadir.Detect(ctx, dir)
	if want == string(quotadir.Project) {
		m, why = quotadir.Project, ""
		if err := quotadir.Try(ctx, dir, m); err != nil {
			m, why = quotadir.None, err.Error()
		}
	}
	fix := "install e2fsprogs, and see that /dev/loop-control is there"
	switch {
	case want != "auto" && want != string(m):
		return check{name, checkFail, fmt.Sprintf("%s is configured and %s works: %s", want, m, why), fix}
	case m == quotadir.None:
		return check{name, checkWarn, "nothing bounds workspaces: " + why, fix}
	}
	found := fmt.Sprintf("%s, %s each unless told otherwise", m, cli.Size(int64(c.Workspaces.Quota)))
	if m == quotadir.Loop && !hasSysResource() {
		found += "; they grow only while no sandbox has them, for want of CAP_SYS_RESOURCE"
	}
	return check{name, checkOK, found, ""}
}

// hasSysResource reports whether this process has CAP_SYS_RESOURCE.
func hasSysResource() bool {
	const sysResource = 24
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), "\nCapEff:")
	var have uint64
	_, err = fmt.Sscanf(strings.TrimSpace(rest), "%x", &have)
	return err == nil && have&(1<<sysResource) != 0
}

// checkRetained reports what the state directory has accumulated, and what removes it.
func checkRetained(ctx context.Context, stateDir string) check {
	var parts []string
	if fi, err := os.Stat(filepath.Join(stateDir, "state.db")); err == nil {
		parts = append(parts, fmt.Sprintf("state.db of %s", cli.Size(fi.Size())))
	}
	if log, err := store.OpenAuditFiles(stateDir).Parts(ctx); err == nil && len(log) > 0 {
		var bytes int64
		for _, p := range log {
			bytes += p.Bytes
		}
		parts = append(parts, fmt.Sprintf("an audit log of %s", cli.Size(bytes)))
	}
	guests := count(engine.DirsOf(stateDir).Guest)
	if guests > 1 {
		parts = append(parts, fmt.Sprintf("%d guests (those of other versions go a week after their last start)", guests))
	}
	if n := count(filepath.Join(stateDir, standalone.RunsDir)); n > 0 {
		parts = append(parts, fmt.Sprintf("%d runs without a server (the next run or serve removes those that are over)", n))
	}
	if n := count(filepath.Join(stateDir, "outputs")); n > 0 {
		parts = append(parts, fmt.Sprintf("%d outputs (kept for an hour)", n))
	}
	if len(parts) == 0 {
		return check{"kept", checkOK, "nothing", ""}
	}
	return check{"kept", checkOK, strings.Join(parts, ", "), ""}
}

func count(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	return len(entries)
}

// sweepGuests removes the guests of earlier versions.
func sweepGuests(dir, keep string, log *slog.Logger) {
	removed, err := guestbin.Sweep(dir, keep)
	if err != nil {
		log.Warn("earlier guests not removed", "path", dir, "error", err)
	}
	for _, hash := range removed {
		log.Info("earlier guest removed", "hash", hash)
	}
}

// doctorPrefix is the prefix of the directories in which doctor tries drivers.
const doctorPrefix = ".doctor-"

// sweepDoctors removes what killed doctors left. Opening a driver removes what was created with it.
func sweepDoctors(ctx context.Context, c config.Config, log *slog.Logger) error {
	return scratch.Sweep(c.StateDir, doctorPrefix, func(dir string) error {
		guest, _, err := guestbin.Write(filepath.Join(dir, "guest"))
		if err != nil {
			return err
		}
		d := standalone.Drivers{Config: c, StateDir: dir, Guest: guest, Log: log}
		for _, name := range d.UsedRuntimes(standalone.RuntimeAuto) {
			got, _, err := d.Open(ctx, name)
			if err == nil {
				err = got.Close()
			} else if count(filepath.Join(dir, standalone.EntryDirs[name])) == 0 {
				err = nil // nothing was created there
			}
			if err != nil {
				return err
			}
		}
		mounts, err := standalone.MountsBelow(dir)
		if err == nil && len(mounts) > 0 {
			err = cli.Refuse(errdefs.ErrFailedPrecondition, "%s is still mounted", mounts[0])
		}
		return err
	})
}
