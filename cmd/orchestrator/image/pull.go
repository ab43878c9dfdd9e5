package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
)

type pullOptions struct{ pin, quiet bool }

func newImagePull(a *cli.App) *cobra.Command {
	var o pullOptions
	c := &cobra.Command{
		Use:   "pull REF",
		Short: "Pull an image from its registry",
		Long: `Pull an image from its registry: NAME, NAME:TAG or NAME@sha256:DIGEST. An
interrupted pull continues where it stopped, also after a restart. Credentials are
those of the Docker configuration (DOCKER_CONFIG, docker login) of the account that
the server runs as. The configuration says what may be pulled, from where without
TLS, and which signatures are required: see docs/images.md.`,
		Example: `  orchestrator image pull debian:12
  orchestrator image pull --pin registry.example/tools@sha256:…`,
		Args: cli.ExactArgs("REF"),
		RunE: func(cmd *cobra.Command, args []string) error { return runImagePull(cmd.Context(), a, args[0], o) },
	}
	c.Flags().BoolVar(&o.pin, "pin", false, "pin the image, so that it is never collected")
	c.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "print only the image's id")
	return c
}

func runImagePull(ctx context.Context, a *cli.App, name string, o pullOptions) error {
	show := newPullProgress(a, o.quiet)
	var list []v1.Image
	err := withImages(ctx, a, standalone.ImageNeeds{Registry: true}, func(cl *client.Client) (err error) {
		list, err = cl.Images.Pull(ctx, v1.PullRequest{Ref: name, Keep: o.pin}, show.event)
		return err
	})
	if err != nil {
		return err
	}
	return printNew(a, list, o.quiet)
}

// pullProgress shows the progress of a pull on standard error. On a terminal it redraws one line
// for each layer; otherwise it prints a line for each completed step.
type pullProgress struct {
	out    io.Writer
	draw   bool
	width  int
	height int
	phase  string
	order  []string
	layers map[string]v1.PullLayer
	lines  int // number of lines drawn above the cursor
}

func newPullProgress(a *cli.App, quiet bool) *pullProgress {
	s := &pullProgress{out: a.Stderr, layers: map[string]v1.PullLayer{}}
	if quiet {
		s.out = io.Discard
	}
	s.width, s.height = terminalSize(a.Stderr)
	s.draw = s.width > 0 && s.height > minHeight && !quiet
	return s
}

func (s *pullProgress) event(e v1.PullEvent) {
	if e.Phase != s.phase && e.Phase != "" {
		s.phase = e.Phase
		if !s.draw {
			fmt.Fprintln(s.out, strings.TrimSpace(s.phase+" "+e.Digest))
		}
	}
	for _, l := range e.Layers {
		before, known := s.layers[l.Digest]
		if !known {
			s.order = append(s.order, l.Digest)
		}
		s.layers[l.Digest] = l
		whole := l.HaveBytes == l.SizeBytes
		if !s.draw && whole && !(known && before.HaveBytes == before.SizeBytes) {
			fmt.Fprintln(s.out, cli.ShortID(cli.Escape(l.Digest)), cli.Size(l.SizeBytes), layerState(l))
		}
	}
	if s.draw {
		s.redraw()
	}
}

func layerState(l v1.PullLayer) string {
	switch {
	case l.Here:
		return "is here already"
	case l.HaveBytes == l.SizeBytes:
		return "fetched"
	case l.HaveBytes == 0:
		return "waits"
	}
	return "fetching"
}

// redraw draws all lines over the previous ones.
func (s *pullProgress) redraw() {
	var b strings.Builder
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.lines)
	}
	const label, figures, least = 14, 40, 10
	bar := min(40, s.width-label-figures)
	shown := s.shown()
	for _, digest := range shown {
		l := s.layers[digest]
		fmt.Fprintf(&b, "\r\x1b[K%-*s", label, cli.ShortID(cli.Escape(digest)))
		if bar >= least {
			done := bar
			if l.SizeBytes > 0 {
				done = int(int64(bar) * min(l.HaveBytes, l.SizeBytes) / l.SizeBytes)
			}
			fmt.Fprintf(&b, "[%s%s] ", strings.Repeat("=", done), strings.Repeat(" ", bar-done))
		}
		fmt.Fprintf(&b, "%s of %s %s\n", cli.Size(l.HaveBytes), cli.Size(l.SizeBytes), layerState(l))
	}
	fmt.Fprintf(&b, "\r\x1b[K%s\n", s.phase)
	s.lines = len(shown) + 1
	fmt.Fprint(s.out, b.String())
}

// shown returns the layers that fit on the screen, incomplete ones first. Their number stays the
// same, so that lines are drawn over lines.
func (s *pullProgress) shown() []string {
	extra := len(s.order) - (s.height - 2)
	if extra <= 0 {
		return s.order
	}
	var out []string
	for _, digest := range s.order {
		if l := s.layers[digest]; extra > 0 && l.HaveBytes == l.SizeBytes {
			extra--
			continue
		}
		out = append(out, digest)
	}
	return out[:min(len(out), s.height-2)]
}

// minHeight is the least number of screen lines for drawing.
const minHeight = 4

// terminalSize returns the columns and lines of a terminal, or zeros if w is none.
func terminalSize(w io.Writer) (width, height int) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	width, height, err := term.GetSize(int(f.Fd())) // a descriptor fits
	if err != nil {
		return 0, 0
	}
	return width, height
}
