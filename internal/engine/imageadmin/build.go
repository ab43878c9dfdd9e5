package imageadmin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/build"
	"github.com/sandbox-orchestrator/orchestrator/images/pull"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Build holds the dependencies of an image build.
type Build struct {
	Store   *images.Store
	Puller  *pull.Puller
	Builder runtime.ImageBuilder
	Log     *slog.Logger
}

// Build builds an image from a Dockerfile in a tar archive and imports it. Only operators may
// call it, because the container engine runs RUN commands with its own network.
func (s *Service) Build(
	ctx context.Context,
	p caller.Principal,
	r v1.BuildRequest,
	files io.Reader,
	tell func(v1.PullEvent),
) ([]v1.Image, error) {
	if err := p.Operate("build images"); err != nil {
		return nil, err
	}
	b := Build{Store: s.opts.Images, Puller: s.opts.Puller, Builder: s.opts.Builder, Log: s.opts.Log}
	img, err := b.Do(ctx, r, files, tell)
	if err != nil {
		return nil, err
	}
	s.opts.Templates.RetryNow(ctx)
	s.requestCollection()
	return Present(img), nil
}

// Do builds and imports an image. Base images come from the store or are pulled into it first; the
// container engine pulls none. tell may be nil.
func (b Build) Do(ctx context.Context, r v1.BuildRequest, files io.Reader, tell func(v1.PullEvent)) (images.Image, error) {
	if b.Builder == nil {
		return images.Image{}, fmt.Errorf("image builds are not configured on this service: %w", errdefs.ErrNotImplemented)
	}
	if _, err := images.ParseName(r.Ref); err != nil {
		return images.Image{}, usererror.Invalid("ref", "is the name that the image gets: %v", err)
	}
	if r.File == "" {
		r.File = "Dockerfile"
	}
	if tell == nil {
		tell = func(v1.PullEvent) {}
	}
	dir, remove, err := b.Store.Scratch()
	if err != nil {
		return images.Image{}, err
	}
	defer remove()
	spool, err := os.OpenFile(filepath.Join(dir, "context.tar"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return images.Image{}, fmt.Errorf("build: %w", err)
	}
	defer spool.Close()
	n, err := io.Copy(spool, io.LimitReader(files, build.MaxContext+1))
	switch {
	case err != nil:
		return images.Image{}, fmt.Errorf("receive the build context: %w", err)
	case n > build.MaxContext:
		return images.Image{}, fmt.Errorf("the build context has more than %d bytes: %w", int64(build.MaxContext), errdefs.ErrResourceExhausted)
	}
	text, err := build.ReadDockerfile(io.NewSectionReader(spool, 0, n), r.File)
	if err != nil {
		return images.Image{}, err
	}
	dockerfile, err := build.Parse(text, r.Args)
	if err != nil {
		return images.Image{}, err
	}
	what := runtime.Build{File: r.File, Args: r.Args, Target: r.Target, Network: r.Network, Log: buildLog(tell)}
	names := map[string]string{}
	var held []func()
	defer func() {
		for _, release := range held {
			release()
		}
	}()
	mark := strings.ToLower(rand.Text())
	for i, ref := range dockerfile.Bases() {
		img, release, err := b.base(ctx, ref, tell)
		if err != nil {
			return images.Image{}, fmt.Errorf("base %s: %w", ref, err)
		}
		held = append(held, release)
		names[ref] = fmt.Sprintf("orchestrator/base:%s-%d", mark, i)
		what.Bases = append(what.Bases, runtime.Base{Name: names[ref], Image: img})
	}
	return b.buildAndImport(ctx, r, what, func(w io.Writer) error {
		return build.Rewrite(io.NewSectionReader(spool, 0, n), w, r.File, dockerfile.Renamed(names))
	})
}

// buildAndImport runs the builder and imports its image.
func (b Build) buildAndImport(
	ctx context.Context,
	r v1.BuildRequest,
	what runtime.Build,
	pack func(io.Writer) error,
) (img images.Image, err error) {
	in, out := io.Pipe()
	packed := make(chan struct{})
	go func() { // waited for below
		defer close(packed)
		out.CloseWithError(pack(out))
	}()
	what.Context = in
	archive, err := b.Builder.Build(ctx, what)
	in.CloseWithError(errors.New("the build has ended"))
	<-packed
	if err != nil {
		return images.Image{}, err
	}
	defer func() {
		if left := archive.Close(); left != nil {
			b.Log.Warn("a build has left something in the engine", "ref", r.Ref, "error", left)
		}
	}()
	if img, err = b.Store.Import(ctx, archive, r.Ref); err != nil {
		return images.Image{}, err
	}
	if r.Keep {
		return b.Store.Pin(img.ID, true)
	}
	return img, nil
}

// base resolves a base image and pulls it if it is missing. The image is not collected until the
// returned function is called.
func (b Build) base(ctx context.Context, ref string, tell func(v1.PullEvent)) (runtime.Image, func(), error) {
	img, err := b.Store.Resolve(ref)
	if errdefs.IsNotFound(err) && b.Puller != nil {
		var pulled images.Image
		if pulled, err = b.Puller.Pull(ctx, ref, PullEvents(ref, tell)); err == nil {
			img, err = b.Store.Resolve(pulled.ID)
		}
	}
	if err != nil {
		return runtime.Image{}, nil, err
	}
	return img, b.Store.Hold(img.ID), nil
}

// buildLog is an io.Writer that emits log events.
type buildLog func(v1.PullEvent)

// Write implements io.Writer.
func (e buildLog) Write(p []byte) (int, error) {
	e(v1.PullEvent{Type: "log", Log: string(p)})
	return len(p), nil
}
