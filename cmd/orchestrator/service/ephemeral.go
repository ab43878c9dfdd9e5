package service

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// ephemeralMarker is the file that makes a state directory one that may be
// removed. Who starts an ephemeral service puts it there first.
const ephemeralMarker = "ephemeral"

// checkEphemeral makes sure that the directory that is to be removed at the end
// was meant for it: named on this command line, and marked before anything else
// was put into it.
func checkEphemeral(a *cli.App, cmd *cobra.Command, dir string) error {
	if a.Flags.StateDir == "" {
		return cli.Usage(cmd, "--ephemeral removes the state directory at the end: name one for it with --state-dir")
	}
	if info, err := os.Lstat(filepath.Join(dir, ephemeralMarker)); err != nil || !info.Mode().IsRegular() {
		return cli.Usage(cmd, "%s may not be removed at the end: make an empty directory with a file %q in it", dir, ephemeralMarker)
	}
	return nil
}

// removeEphemeral removes the state directory after everything was taken down.
// If that went wrong it stays: it tells what is left.
func removeEphemeral(dir string, failed error) error {
	if failed != nil {
		return fmt.Errorf("the state directory %s was not removed: what it tells of may be there still", dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the state directory: %w", err)
	}
	return nil
}
