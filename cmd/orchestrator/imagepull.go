package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/pull"
	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/images/registry"
	"github.com/sandbox-orchestrator/orchestrator/images/signature"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

// newPuller is what pulls images as configured.
func newPuller(c config.Images, store *images.Store, log *slog.Logger) (*pull.Puller, error) {
	o := pull.Options{Store: store, RequireDigest: c.RequireDigest, Log: log}
	var err error
	if o.Allow, err = ref.ParseList(c.Allow); err != nil {
		return nil, fmt.Errorf("configuration: images.allow: %w", err)
	}
	if o.Signed, err = ref.ParseList(c.Signatures.For); err != nil {
		return nil, fmt.Errorf("configuration: images.signatures.for: %w", err)
	}
	for _, path := range c.Signatures.Keys {
		key, err := readKey(path)
		if err != nil {
			return nil, fmt.Errorf("configuration: images.signatures.keys: %w", err)
		}
		o.Keys = append(o.Keys, key)
	}
	o.Registry = registry.New(registry.Options{Insecure: c.Insecure, Log: log})
	return pull.New(o), nil
}

func readKey(path string) (signature.Key, error) {
	const most = 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return signature.Key{}, refuse(errdefs.ErrInvalidArgument, "%w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return signature.Key{}, err
	}
	return signature.ParseKey(path, raw)
}

// fetchImage gets templates' images for an engine; nil if it shall not.
func fetchImage(c config.Images, p *pull.Puller, log *slog.Logger) func(context.Context, string) error {
	if !c.Prepull {
		return nil
	}
	return func(ctx context.Context, name string) error {
		// A name that says no registry is a local one: whoever has it at a public
		// registry is not meant.
		if !ref.HasRegistry(name) {
			return imageHint(refuse(errdefs.ErrNotFound, "image %q is not here, and its name says no registry to pull it from at the start", name))
		}
		log.Info("pulling a template's image", "ref", name)
		told, phase := time.Now(), ""
		_, err := p.Pull(ctx, name, func(now pull.Progress) {
			const often = 10 * time.Second
			if now.Phase == phase && time.Since(told) < often {
				return
			}
			told, phase = time.Now(), now.Phase
			have, size := int64(0), int64(0)
			for _, l := range now.Layers {
				have, size = have+l.Have, size+l.Size
			}
			log.Info("a template's image is on its way", "ref", name, "phase", phase, "bytes", have, "of", size)
		})
		return err
	}
}

type pullOptions struct{ pin, quiet bool }

func (a *app) newImagePull() *cobra.Command {
	var o pullOptions
	c := &cobra.Command{
		Use:   "pull REF",
		Short: "Bring an image from its registry",
		Long: `Bring an image from its registry: NAME, NAME:TAG or NAME@sha256:DIGEST. What
was cut off goes on where it stopped, also after a restart. Credentials are
those of the Docker configuration (DOCKER_CONFIG, docker login) of whoever runs
the server. What may be pulled, from where without TLS, and whose signatures
are asked for, the configuration says: see docs/images.md.`,
		Example: `  orchestrator image pull debian:12
  orchestrator image pull --pin registry.example/tools@sha256:…`,
		Args: exactArgs("REF"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runImagePull(cmd.Context(), args[0], o) },
	}
	c.Flags().BoolVar(&o.pin, "pin", false, "pin the image, so that it is never collected")
	c.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "print the image's id and nothing else")
	return c
}

func (a *app) runImagePull(ctx context.Context, name string, o pullOptions) error {
	c, err := a.valid()
	if err != nil {
		return err
	}
	cl, err := a.server(ctx, c)
	if err != nil {
		return err
	}
	show := newPullShow(a, o.quiet)
	var list []v1.Image
	if cl != nil {
		list, err = cl.PullImage(ctx, v1.PullRequest{Ref: name, Keep: o.pin}, show.event)
	} else {
		list, err = withImages(ctx, a, c, func(s *images.Store) ([]v1.Image, error) { return pullHere(ctx, c, s, name, o.pin, show.event) })
	}
	if err != nil {
		return err
	}
	if o.quiet && a.flags.output != "json" {
		for _, i := range list[:min(1, len(list))] {
			fmt.Fprintln(a.stdout, i.ID)
		}
		return nil
	}
	return a.printImages(list)
}

// pullHere pulls without a server.
func pullHere(ctx context.Context, c config.Config, s *images.Store, name string, keep bool, tell func(v1.PullEvent)) ([]v1.Image, error) {
	p, err := newPuller(c.Images, s, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer p.Close()
	img, err := p.Pull(ctx, name, engine.PullEvents("", tell))
	if err == nil && keep {
		img, err = s.Pin(img.ID, true)
	}
	if err != nil {
		return nil, err
	}
	return engine.PresentImage(img), nil
}

// pullShow shows how far a pull is, on standard error: on a terminal a line for
// each layer that is drawn anew, else a line for each thing that was done.
type pullShow struct {
	out    io.Writer
	draw   bool
	width  int
	height int
	phase  string
	order  []string
	layers map[string]v1.PullLayer
	lines  int // drawn, above the cursor
}

func newPullShow(a *app, quiet bool) *pullShow {
	s := &pullShow{out: a.stderr, layers: map[string]v1.PullLayer{}}
	if quiet {
		s.out = io.Discard
	}
	s.width, s.height = terminalSize(a.stderr)
	s.draw = s.width > 0 && s.height > leastHeight && !quiet
	return s
}

func (s *pullShow) event(e v1.PullEvent) {
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
			fmt.Fprintln(s.out, shortID(escape(l.Digest)), size(l.SizeBytes), word(l))
		}
	}
	if s.draw {
		s.redraw()
	}
}

func word(l v1.PullLayer) string {
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

// redraw draws all lines over those of the last time.
func (s *pullShow) redraw() {
	var b strings.Builder
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.lines)
	}
	const label, figures, least = 14, 40, 10
	bar := min(40, s.width-label-figures)
	shown := s.shown()
	for _, digest := range shown {
		l := s.layers[digest]
		fmt.Fprintf(&b, "\r\x1b[K%-*s", label, shortID(escape(digest)))
		if bar >= least {
			done := bar
			if l.SizeBytes > 0 {
				done = int(int64(bar) * min(l.HaveBytes, l.SizeBytes) / l.SizeBytes)
			}
			fmt.Fprintf(&b, "[%s%s] ", strings.Repeat("=", done), strings.Repeat(" ", bar-done))
		}
		fmt.Fprintf(&b, "%s of %s %s\n", size(l.HaveBytes), size(l.SizeBytes), word(l))
	}
	fmt.Fprintf(&b, "\r\x1b[K%s\n", s.phase)
	s.lines = len(shown) + 1
	fmt.Fprint(s.out, b.String())
}

// shown are the layers that fit the screen; those that are whole give way. It
// is always as many, so that lines are drawn over lines.
func (s *pullShow) shown() []string {
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

// leastHeight is what a screen needs for drawing.
const leastHeight = 4

// terminalSize is how wide and high a terminal is; 0 where w is none.
func terminalSize(w io.Writer) (width, height int) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	at, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ) //nolint:gosec // a descriptor fits
	if err != nil {
		return 0, 0
	}
	return int(at.Col), int(at.Row)
}
