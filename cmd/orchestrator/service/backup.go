package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	units "github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/backup"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// NewBackupCommand returns "orchestrator backup".
func NewBackupCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write the records of the state directory to a file, also while the service runs",
		Long: `Write the records of the state directory to a file: leases, tokens, approvals, jobs
and the audit log with its key. The service may run. Workspaces, images and the files
of jobs are not included. The file is as secret as the state directory.`,
		Example: "  orchestrator backup /root/orchestrator-backup.tar.gz",
		Args:    cli.ExactArgs("FILE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runBackup(cmd.Context(), a, args[0]) },
	}
}

func runBackup(ctx context.Context, a *cli.App, path string) (err error) {
	c, err := a.ValidSettings()
	if err != nil {
		return err
	}
	if !store.HasState(c.StateDir) {
		return cli.Refuse(errdefs.ErrNotFound, "state directory %s has no records: name another with --state-dir", c.StateDir)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return cli.Refuse(errdefs.ErrAlreadyExists, "%s exists: choose another name", path)
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	m, err := backup.Write(ctx, f, c.StateDir, a.Version)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("backup: %w", errors.Join(err, os.Remove(path)))
	}
	return printManifest(a, m, "", path)
}

// NewRestoreCommand returns "orchestrator restore".
func NewRestoreCommand(a *cli.App) *cobra.Command {
	var replace bool
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup into the state directory of a stopped service",
		Long: `Put a backup into the state directory of a stopped service. Everything is checked
first. With --replace, the earlier records are moved to a directory beside the new
ones. Tokens that were revoked after the backup are valid again. Sandboxes that the
backup does not know are destroyed at the next start.`,
		Example: "  systemctl stop orchestrator\n  orchestrator restore --replace /root/orchestrator-backup.tar.gz",
		Args:    cli.ExactArgs("FILE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runRestore(cmd.Context(), a, args[0], replace) },
	}
	c.Flags().BoolVar(&replace, "replace", false, "replace the records that the state directory has")
	return c
}

func runRestore(ctx context.Context, a *cli.App, path string, replace bool) (err error) {
	c, err := a.ValidSettings()
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return cli.Refuse(errdefs.ErrNotFound, "restore: %w", err)
	}
	defer f.Close()
	lock, err := store.LockDir(c.StateDir)
	if errdefs.IsUnavailable(err) {
		return cli.Refuse(errdefs.ErrFailedPrecondition,
			"restore: %s: stop the service first, with `systemctl stop orchestrator` or SIGTERM",
			cli.WithoutClass(err.Error()))
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	m, aside, err := backup.Restore(ctx, f, c.StateDir, replace)
	if err != nil {
		if aside != "" {
			a.Note("the earlier records are in %s", aside)
		}
		return fmt.Errorf("restore %s: %w", path, err)
	}
	return printManifest(a, m, aside, c.StateDir)
}

// printManifest prints what was written to a place, and what was not.
func printManifest(a *cli.App, m backup.Manifest, aside, place string) error {
	if a.Flags.Output == "json" {
		return a.PrintJSON(struct {
			backup.Manifest
			Aside string `json:"aside,omitempty"`
		}{m, aside})
	}
	names := make([]string, 0, len(m.Files))
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	fmt.Fprintf(a.Stdout, "%s: %d files, %s, of %s by version %s\n", cli.Escape(place), len(m.Files),
		units.BytesSize(float64(m.Bytes())), m.Created.Format("2006-01-02 15:04:05Z"), cli.Escape(m.Program))
	fmt.Fprintf(a.Stdout, "included: %s\n", strings.Join(names, " "))
	if len(m.Excluded) > 0 {
		fmt.Fprintf(a.Stdout, "not included: %s\n", cli.Escape(strings.Join(m.Excluded, " ")))
	}
	if aside != "" {
		fmt.Fprintf(a.Stdout, "earlier records: %s\n", cli.Escape(aside))
	}
	return nil
}
