package workspace

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

func newWorkspaceDiff(a *cli.App) *cobra.Command {
	var bare bool
	c := &cobra.Command{
		Use:   "diff SANDBOX|NAME [PATH...]",
		Short: "Show what a sandbox changed in its overlay",
		Long: `Show what a sandbox that was created with --mode overlay changed in its workspace,
during its life or afterwards. For the name of a workspace, show the changes of each
of its overlays.`,
		Example: "  orchestrator workspace diff $id\n  orchestrator workspace diff $id src --name-only\n  orchestrator workspace diff notes",
		Args:    atLeastOne("SANDBOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				d, err := w.Overlays.Diff(cmd.Context(), args[0], !bare, args[1:]...)
				if err == nil {
					return printDiff(a, d, !bare)
				}
				if !errdefs.IsNotFound(err) {
					return err
				}
				list, none := w.Overlays.List(cmd.Context(), args[0])
				if none != nil {
					return err
				}
				return diffAll(cmd.Context(), a, w, list, !bare, args[1:])
			})
		},
	}
	c.Flags().BoolVar(&bare, "name-only", false, "print only the paths")
	return c
}

// diffAll shows the changes of each overlay of a workspace.
func diffAll(ctx context.Context, a *cli.App, w workspaces, list []v1.Overlay, text bool, paths []string) error {
	diffs := make([]v1.Diff, 0, len(list))
	for _, o := range list {
		d, err := w.Overlays.Diff(ctx, o.ID, text, paths...)
		if errdefs.IsNotFound(err) { // removed after it was listed
			continue
		}
		if err != nil {
			return err
		}
		diffs = append(diffs, d)
	}
	if a.Flags.Output == "json" {
		return a.Print(v1.List[v1.Diff]{Items: diffs}, nil)
	}
	for _, d := range diffs {
		if err := printDiff(a, d, text); err != nil {
			return err
		}
	}
	return nil
}

// printDiff prints the changes as a table and then as text.
func printDiff(a *cli.App, d v1.Diff, text bool) error {
	t := &cli.Table{Head: []string{"", "PATH", "TYPE", "SIZE", "NOTE"}}
	for _, c := range d.Changes {
		t.Add(strings.ToUpper(c.Kind[:1]), c.Path, kindOf(c), sizes(c), changeNotes(c))
	}
	if err := a.Print(d, t); err != nil || a.Flags.Output == "json" {
		return err
	}
	state := "kept"
	if d.Overlay.Live {
		state = "live: its sandbox is not over"
	}
	if _, err := fmt.Fprintf(
		a.Stdout, "overlay %s on %s (%s): %d added, %d changed, %d removed\n",
		d.Overlay.ID, d.Overlay.Workspace, state, d.Added, d.Changed, d.Removed,
	); err != nil {
		return err
	}
	if d.Truncated {
		if _, err := fmt.Fprintf(a.Stdout, "there are more changes than the %d shown: name paths\n", len(d.Changes)); err != nil {
			return err
		}
	}
	if !text {
		return nil
	}
	for _, c := range d.Changes {
		if err := writeDiff(a.Stdout, c); err != nil {
			return err
		}
	}
	return nil
}

func writeDiff(w io.Writer, c v1.Change) error {
	if c.Diff == "" {
		return nil
	}
	cut := ""
	if c.Truncated {
		cut = "(cut: the rest is not shown)\n"
	}
	_, err := fmt.Fprintf(w, "\n%s%s", cli.EscapeText(c.Diff), cut)
	return err
}

func kindOf(c v1.Change) string {
	switch {
	case c.Type == "":
		return c.TypeBefore
	case c.TypeBefore == "" || c.Type == c.TypeBefore:
		return c.Type
	}
	return c.TypeBefore + " -> " + c.Type
}

func sizes(c v1.Change) string {
	switch c.Kind {
	case "added":
		return cli.Size(c.Size)
	case "removed":
		return cli.Size(c.SizeBefore)
	}
	return cli.Size(c.SizeBefore) + " -> " + cli.Size(c.Size)
}

func changeNotes(c v1.Change) string {
	var notes []string
	if c.ModeBefore != "" && c.Mode != "" && c.Mode != c.ModeBefore {
		notes = append(notes, c.ModeBefore+" -> "+c.Mode)
	}
	if c.Binary {
		notes = append(notes, "binary")
	}
	if c.Dropped {
		notes = append(notes, "cannot be committed")
	}
	if c.Conflict != nil {
		by := c.Conflict.By
		if by == "" {
			by = "somebody"
		}
		notes = append(notes, "CONFLICT: changed by "+by)
	}
	return strings.Join(notes, ", ")
}

func newWorkspaceCommit(a *cli.App) *cobra.Command {
	var r v1.CommitRequest
	c := &cobra.Command{
		Use:   "commit SANDBOX [PATH...]",
		Short: "Write the changes of an overlay to its workspace",
		Long: `Write the changes of a sandbox with an overlay to its workspace: all of them, or those
of the named paths and everything below. Either all are written or none. If others
changed the same paths in the workspace, nothing is committed, and the paths are
named.`,
		Example: "  orchestrator workspace commit $id\n  orchestrator workspace commit $id src README.md --end-sandbox",
		Args:    atLeastOne("SANDBOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Paths = args[1:]
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				got, err := w.CommitOverlay(cmd.Context(), args[0], r)
				if err != nil {
					return err
				}
				t := &cli.Table{Head: []string{"COMMITTED", "DROPPED", "LEFT"}}
				t.Add(fmt.Sprint(len(got.Paths)), fmt.Sprint(len(got.Dropped)), fmt.Sprint(got.Left))
				return a.Print(got, t)
			})
		},
	}
	c.Flags().BoolVar(&r.Force, "force", false, "overwrite concurrent changes")
	c.Flags().BoolVar(&r.End, "end-sandbox", false, "end the sandbox first if it is still running")
	return c
}

func newWorkspaceDiscard(a *cli.App) *cobra.Command {
	var end bool
	c := &cobra.Command{
		Use:     "discard SANDBOX...",
		Short:   "Discard the changes of overlays",
		Example: "  orchestrator workspace discard $id --end-sandbox",
		Args:    atLeastOne("SANDBOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				for _, id := range args {
					if err := w.DiscardOverlay(cmd.Context(), id, end); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&end, "end-sandbox", false, "end the sandbox first if it is still running")
	return c
}

func newWorkspaceOverlays(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "overlays NAME",
		Short:   "List the overlays of a workspace",
		Example: "  orchestrator workspace overlays notes",
		Args:    cli.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				list, err := w.Overlays.List(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return cli.PrintList(
					a,
					list,
					[]string{"SANDBOX", "CREATED", "STATE", "CHANGES", "EXPIRES"},
					func(o v1.Overlay) []string {
						row := []string{o.ID, cli.Ago(o.CreatedAt), "kept", fmt.Sprint(o.Changes), ""}
						if o.Live {
							row[2], row[3] = "live", ""
						}
						if o.ExpiresAt != nil {
							row[4] = cli.Until(*o.ExpiresAt)
						}
						return row
					},
				)
			})
		},
	}
}

// atLeastOne requires one argument or more, none of them empty.
func atLeastOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cli.Usage(cmd, "%s is missing", name)
		}
		for _, a := range args {
			if a == "" {
				return cli.Usage(cmd, "an argument is empty")
			}
		}
		return nil
	}
}
