package service

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// ephemeralMarker is the file that allows a state directory to be removed. Whoever starts an
// ephemeral service creates it first.
const ephemeralMarker = "ephemeral"

// checkEphemeral checks that the directory is meant to be removed at the end: this command line
// names it, and it has the marker.
func checkEphemeral(a *cli.App, cmd *cobra.Command, dir string) error {
	if a.Flags.StateDir == "" {
		return cli.Usage(cmd, "--ephemeral removes the state directory at the end: name one for it with --state-dir")
	}
	if info, err := os.Lstat(filepath.Join(dir, ephemeralMarker)); err != nil || !info.Mode().IsRegular() {
		return cli.Usage(
			cmd,
			"%s may not be removed at the end: make an empty directory with a file %q in it",
			dir,
			ephemeralMarker,
		)
	}
	return nil
}

// removeEphemeral removes the state directory after everything was taken down. After an error it
// keeps the directory, which shows what is left.
func removeEphemeral(dir string, failed error) error {
	if failed != nil {
		return fmt.Errorf("state directory %s was not removed: its sandboxes may still exist", dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the state directory: %w", err)
	}
	return nil
}
