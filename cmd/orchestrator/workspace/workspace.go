// Package workspace has the commands of "orchestrator workspace": workspaces, their snapshots and
// overlays. They use the server if one answers, and the workspaces of the state directory if none
// does.
package workspace

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
)

// NewCommand returns "orchestrator workspace" with its commands.
func NewCommand(a *cli.App) *cobra.Command {
	return cli.Group(
		"workspace",
		"Keep files that outlive sandboxes; with or without a server",
		`  orchestrator workspace create notes
  orchestrator workspace put notes report.csv data/report.csv
  orchestrator run --workspace notes -- head -3 data/report.csv
  orchestrator workspace get notes data/report.csv -`,
		newWorkspaceCreate(
			a,
		),
		newWorkspaceList(a),
		newWorkspaceResize(a),
		newWorkspaceRemove(a),
		newWorkspacePut(a),
		newWorkspaceGet(a),
		newWorkspaceFiles(a),
		newWorkspaceDiff(a),
		newWorkspaceCommit(a),
		newWorkspaceDiscard(a),
		newWorkspaceOverlays(a),
		newWorkspaceSnapshot(a),
		newWorkspaceSnapshots(a),
		newWorkspaceRestore(a),
	)
}

// withWorkspaces calls do with the workspaces of the server that answers, or of the state directory
// if none does.
func withWorkspaces(ctx context.Context, a *cli.App, do func(workspaces) error) error {
	c, err := a.ValidSettings()
	if err != nil {
		return err
	}
	cl, err := a.FindServer(ctx, c)
	if err != nil {
		return err
	}
	if cl != nil {
		return do(workspaces{Client: cl})
	}
	return standalone.WithWorkspaces(ctx, a, c, func(cl *client.Client) error {
		return do(workspaces{Client: cl, stateDir: c.StateDir})
	})
}

func workspaceRow(w v1.Workspace) []string {
	return append([]string{w.Name, cli.Ago(w.CreatedAt)}, append(spaceCells(w), strings.Join(cli.ShortIDs(w.Sandboxes), " "))...)
}

func workspaceHead() []string { return []string{"NAME", "CREATED", "SIZE", "USED", "SANDBOXES"} }

func newWorkspaceCreate(a *cli.App) *cobra.Command {
	var quota string
	c := &cobra.Command{
		Use:     "create NAME",
		Short:   "Create an empty workspace",
		Example: "  orchestrator workspace create notes\n  orchestrator workspace create notes --quota 64MiB",
		Args:    cli.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			bytes, err := quotaSize(cmd, "--quota", quota)
			if err != nil {
				return err
			}
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				got, err := w.Workspaces.CreateWithQuota(cmd.Context(), args[0], bytes)
				return printWorkspace(a, got, err)
			})
		},
	}
	c.Flags().StringVar(&quota, "quota", "", "maximum `SIZE`, such as 64MiB (default: the configured one)")
	return c
}

func newWorkspaceList(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List workspaces",
		Example: "  orchestrator workspace ls -o json",
		Args:    cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				list, err := w.Workspaces.List(cmd.Context())
				if err != nil {
					return err
				}
				return cli.PrintList(a, list, workspaceHead(), workspaceRow)
			})
		},
	}
}

func newWorkspaceRemove(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME [PATH]",
		Short:   "Remove a workspace, or a file or directory in it",
		Example: "  orchestrator workspace rm notes\n  orchestrator workspace rm notes data/old.csv",
		Args:    cli.ExactArgs("NAME", "[PATH]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				if len(args) == 2 {
					return w.Workspaces.Files(args[0]).Remove(cmd.Context(), args[1], true)
				}
				return w.DeleteWorkspace(cmd.Context(), args[0])
			})
		},
	}
}

func newWorkspaceFiles(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "files NAME [PATH]",
		Short:   "List the files in a directory of a workspace",
		Example: "  orchestrator workspace files notes data",
		Args:    cli.ExactArgs("NAME", "[PATH]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "."
			if len(args) == 2 {
				path = args[1]
			}
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				list, truncated, err := w.Workspaces.Files(args[0]).List(cmd.Context(), path)
				if err != nil {
					return err
				}
				if truncated {
					fmt.Fprintf(a.Stderr, "orchestrator: only the first %d files are shown\n", len(list))
				}
				return cli.PrintList(a, list, []string{"MODE", "OWNER", "SIZE", "MODIFIED", "NAME"}, func(f v1.File) []string {
					name := f.Name
					switch {
					case f.Type == "dir":
						name += "/"
					case f.Target != "":
						name += " -> " + f.Target
					}
					return []string{
						f.Mode,
						fmt.Sprintf("%d:%d", f.UID, f.GID),
						fmt.Sprint(f.Size),
						f.ModTime.Local().Format("2006-01-02 15:04"),
						name,
					}
				})
			})
		},
	}
}

func newWorkspacePut(a *cli.App) *cobra.Command {
	var mode string
	c := &cobra.Command{
		Use:   "put NAME SOURCE [PATH]",
		Short: "Copy a file into a workspace; - is standard input",
		Example: `  orchestrator workspace put notes report.csv
  echo hello | orchestrator workspace put notes - greetings/hello.txt`,
		Args: cli.ExactArgs("NAME", "SOURCE", "[PATH]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := strconv.ParseUint(mode, 8, 32); err != nil {
				return cli.Refuse(errdefs.ErrInvalidArgument, "mode %q is not octal, such as 0644", mode)
			}
			source, path := args[1], ""
			switch {
			case len(args) == 3:
				path = args[2]
			case source == "-":
				return cli.Usage(cmd, "PATH is missing: standard input has no name")
			default:
				path = filepath.Base(source)
			}
			in, n, done, err := a.OpenInput(cmd.Context(), source)
			if err != nil {
				return err
			}
			defer done()
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				_, err := w.Workspaces.Files(args[0]).
					Write(cmd.Context(), path, in, client.WriteOptions{Mode: mode, Size: n, Sized: n >= 0})
				return err
			})
		},
	}
	c.Flags().StringVar(&mode, "mode", "0644", "`PERMISSIONS` of the file, in octal")
	return c
}

func newWorkspaceGet(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME PATH [TARGET]",
		Short: "Copy a file out of a workspace; - is standard output",
		Example: `  orchestrator workspace get notes data/report.csv
  orchestrator workspace get notes greetings/hello.txt -`,
		Args: cli.ExactArgs("NAME", "PATH", "[TARGET]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			target := filepath.Base(args[1])
			if len(args) == 3 {
				target = args[2]
			}
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				in, err := w.Workspaces.Files(args[0]).Read(cmd.Context(), args[1], client.Range{})
				if err != nil {
					return err
				}
				defer in.Close()
				if target == "-" {
					_, err := io.Copy(a.Stdout, in)
					return err
				}
				if err := cli.SaveFile(target, 0o644, in); err != nil {
					return fmt.Errorf("write %s: %w", target, err)
				}
				return nil
			})
		},
	}
}
