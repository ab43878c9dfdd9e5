//go:build linux

package standalone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/metrics"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// outputsDir is a directory in the state directory.
const outputsDir = "outputs"

// Governance holds the open parts that tool calls need.
type Governance struct {
	*governed.Config
	undo []func() error
}

func (g *Governance) later(undo func() error) { g.undo = append(g.undo, undo) }

// ShellCaller returns the caller that POST /shell runs commands for, or "" if it is disabled.
func (g *Governance) ShellCaller() string {
	if g.Compat == nil {
		return ""
	}
	return g.Compat.Caller
}

// Close closes the parts in reverse order.
func (g *Governance) Close() error {
	var errs []error
	for i := len(g.undo) - 1; i >= 0; i-- {
		errs = append(errs, g.undo[i]())
	}
	g.undo = nil
	return errors.Join(errs...)
}

// OpenGovernance opens the parts that tool calls need, in a state directory whose lock the caller
// holds. m counts what they do, or is nil. Close it after the engine has ended.
func OpenGovernance(
	ctx context.Context,
	c config.Config,
	dir string,
	st *store.Store,
	m *metrics.Metrics,
	log *slog.Logger,
) (g *Governance, err error) {
	g = &Governance{Config: &governed.Config{Default: c.Profiles.Default, Outputs: filepath.Join(dir, outputsDir)}}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	if g.Profiles, err = OpenProfiles(c); err != nil {
		return g, err
	}
	warnOfProfiles(log, g.Profiles, c.Templates)
	if g.Redactor, err = redactor(c.Audit.Redact); err != nil {
		return g, err
	}
	db, err := store.OpenAudit(ctx, dir)
	if err != nil {
		return g, err
	}
	g.later(db.Close)
	g.Audit, err = audit.Open(ctx, audit.Options{
		Store: db, Redactor: g.Redactor, Head: filepath.Join(dir, audit.HeadFile), CallerDailyBytes: int64(c.Audit.CallerDailyBytes), Log: log,
		OnAppend: func(took time.Duration) { m.StoreWrite(store.OpAppendAudit, took) },
		Retention: audit.Retention{
			PartSize: int64(
				c.Audit.PartSize,
			), PartAge: c.Audit.PartAge.Std(), KeepAge: c.Audit.KeepAge.Std(), KeepSize: int64(c.Audit.KeepSize),
		},
	})
	if err != nil {
		return g, err
	}
	g.later(g.Audit.Close)
	hook, err := webhook(c.Approvals)
	if err != nil {
		return g, err
	}
	g.Gate, err = approval.New(ctx, approval.Options{
		Store: st, Log: log, Expiry: c.Approvals.Expiry.Std(), MaxPending: c.Approvals.MaxPending,
		MaxPendingPerCaller: cmp.Or(c.Callers.MaxPending, c.Approvals.MaxPending),
		Free:                caller.LocalCaller, Check: g.CheckModified, Webhook: hook,
		OnDecided: func(state approval.State) { m.ApprovalDecided(string(state)) },
	})
	if err != nil {
		return g, err
	}
	g.Limiter = &approval.Limiter{}
	if r := c.ReadonlyShell; r.Enabled {
		g.Compat = &governed.Compat{Caller: r.Caller, Workspaces: r.Workspaces}
	}
	return g, nil
}

// OpenProfiles compiles the built-in profiles and those of the configured directory.
func OpenProfiles(c config.Config) (*profile.Set, error) {
	set, err := LoadProfiles(c.Profiles.Dir)
	if err != nil {
		return nil, err
	}
	if _, err := set.Get(c.Profiles.Default); err != nil {
		return nil, fmt.Errorf("configuration: profiles.default: %w", err)
	}
	return set, nil
}

// redactor returns a redactor of the configured values and patterns.
func redactor(c config.Redact) (*audit.Redactor, error) {
	var patterns []*regexp.Regexp
	for _, p := range c.Patterns {
		re, err := regexp.Compile(p)
		if err != nil {
			return nil, cli.Refuse(errdefs.ErrInvalidArgument, "configuration: audit.redact.patterns: %s", err)
		}
		patterns = append(patterns, re)
	}
	r := audit.NewRedactor(patterns...)
	for _, path := range c.Files {
		if err := eachLine(path, r.Add); err != nil {
			return nil, fmt.Errorf("configuration: audit.redact.files: %w", err)
		}
	}
	return r, nil
}

// maxSecretsFile bounds a file of secret values, in bytes.
const maxSecretsFile = 1 << 20

// eachLine passes the lines of a file that are not empty to do.
func eachLine(path string, do func(string)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecretsFile+1))
	if err != nil {
		return err
	}
	if len(text) > maxSecretsFile {
		return fmt.Errorf("%s is over %d bytes: split it", path, maxSecretsFile)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			do(line)
		}
	}
	return nil
}

func webhook(c config.Approvals) (w approval.Webhook, err error) {
	w.URL = c.Webhook
	if c.SecretFile != "" {
		secret, err := cli.ReadToken(c.SecretFile)
		if err != nil {
			return w, fmt.Errorf("configuration: approvals.secret_file: %w", err)
		}
		w.Secret = []byte(secret)
	}
	return w, nil
}

// Quotas returns the quotas of callers whose tokens set none.
func Quotas(c config.Callers) caller.Quotas {
	return caller.Quotas{
		Sandboxes:   c.Sandboxes,
		MemoryBytes: int64(c.Memory),
		DiskBytes:   int64(c.Disk),
		Calls:       c.Calls,
		Waiting:     c.MaxWaiting,
	}
}
