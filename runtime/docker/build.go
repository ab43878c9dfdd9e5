package docker

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/build"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Builder builds images from Dockerfiles with the engine at Host; "" is the default engine. It
// connects for each build and needs no driver.
type Builder struct{ Host string }

var _ runtime.ImageBuilder = Builder{}

// tidyTime bounds the removal of what a build left in the engine.
const tidyTime = time.Minute

// Build builds an image with the engine's classic builder, without its cache. Closing the archive
// removes what the build left in the engine.
func (b Builder) Build(ctx context.Context, what runtime.Build) (_ io.ReadCloser, err error) {
	api, err := connect(b.Host)
	if err != nil {
		return nil, err
	}
	w := &work{Driver: &Driver{api: api, host: api.DaemonHost()}, tag: "orchestrator/build:" +
		strings.ToLower(rand.Text())}
	if _, err := w.ask(ctx); err != nil {
		err = errors.Join(err, api.Close())
		if client.IsErrConnectionFailed(err) {
			err = fmt.Errorf("no Docker Engine answers on %s, and builds from a Dockerfile need one: start it, or build "+
				"from Debian packages without one (`orchestrator image build --packages`): %w", w.host, errdefs.ErrUnavailable)
		}
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.began, err = w.clock(ctx); err != nil {
		return nil, err
	}
	for _, base := range what.Bases {
		if err := w.give(ctx, base); err != nil {
			return nil, err
		}
	}
	if err := w.build(ctx, what); err != nil {
		return nil, err
	}
	if w.ReadCloser, err = api.ImageSave(ctx, []string{w.tag}); err != nil {
		return nil, w.failed(ctx, "save what was built", err)
	}
	return w, nil
}

// work is one build, and the archive of its image.
type work struct {
	io.ReadCloser
	*Driver
	tag  string
	lent []string // the names of bases, and those that the engine lacked
	made []string // images of intermediate steps
	// began is in the engine's clock, or slightly earlier.
	began time.Time
}

// Close removes everything that the build left in the engine. Images that something else needs
// stay.
func (w *work) Close() error {
	var errs []error
	if w.ReadCloser != nil {
		errs = append(errs, w.ReadCloser.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
	defer cancel()
	slices.Reverse(w.made)
	for _, name := range slices.Concat([]string{w.tag}, w.made, w.lent) {
		errs = append(errs, w.remove(ctx, name))
	}
	return errors.Join(append(errs, w.api.Close())...)
}

// remove removes an image. After an interrupted build the container of its last step briefly
// prevents it.
func (w *work) remove(ctx context.Context, name string) error {
	const pause, tries = 200 * time.Millisecond, 50
	step := slices.Contains(w.made, name)
	for try := 1; ; try++ {
		if step && !w.own(ctx, name) {
			return nil
		}
		_, err := w.api.ImageRemove(ctx, name, client.ImageRemoveOptions{PruneChildren: true})
		switch {
		case err == nil, errdefs.IsNotFound(err):
			return nil
		case !errdefs.IsConflict(err):
			return w.failed(ctx, "remove "+name, err)
		case !step || try == tries:
			return nil // something else needs it
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return w.failed(ctx, "remove "+name, ctx.Err())
		}
	}
}

// clock returns the engine's time.
func (w *work) clock(ctx context.Context) (time.Time, error) {
	got, err := w.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return time.Time{}, w.failed(ctx, "ask for its time", err)
	}
	at, err := time.Parse(time.RFC3339Nano, got.Info.SystemTime)
	if err != nil {
		return time.Time{}, fmt.Errorf("docker engine at %s: its time: %w: %w", w.host, err, errdefs.ErrUnavailable)
	}
	return at, nil
}

// own reports whether this build can have made an image. A command can print what looks like the
// engine's own output, and must not cause the removal of another image.
func (w *work) own(ctx context.Context, id string) bool {
	got, err := w.api.ImageInspect(ctx, id)
	if err != nil || len(got.RepoTags) > 0 || len(got.RepoDigests) > 0 {
		return false
	}
	made, err := time.Parse(time.RFC3339Nano, got.Created)
	return err == nil && made.After(w.began)
}

// give names a base image, and loads it into the engine first if it is missing. The end of another
// build removes what that build loaded; then it is loaded again.
func (w *work) give(ctx context.Context, base runtime.Base) error {
	const tries = 3
	tag := images.EngineTag(base.Image.ID)
	for try := 1; ; try++ {
		_, err := w.api.ImageTag(ctx, client.ImageTagOptions{Source: tag, Target: base.Name})
		if err == nil {
			w.lent = append(w.lent, base.Name)
			return nil
		}
		if !errdefs.IsNotFound(err) || try == tries {
			return w.failed(ctx, "name image "+base.Image.Ref, err)
		}
		if err := w.load(ctx, base.Image, tag); err != nil {
			return err
		}
	}
}

func (w *work) load(ctx context.Context, img runtime.Image, tag string) error {
	f, err := os.Open(img.Archive)
	if err != nil {
		return fmt.Errorf("docker: image %s: open archive: %w", img.Ref, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	if !slices.Contains(w.lent, tag) {
		w.lent = append(w.lent, tag)
	}
	body, err := w.api.ImageLoad(ctx, f, client.ImageLoadWithQuiet(true))
	if err != nil {
		return w.failed(ctx, "load image "+img.Ref, err)
	}
	defer func() { _ = body.Close() }()
	if _, err := messages(body); err != nil {
		return w.failed(ctx, "load image "+img.Ref, err)
	}
	return nil
}

func (w *work) build(ctx context.Context, what runtime.Build) error {
	args := map[string]*string{}
	for name, value := range what.Args {
		args[name] = &value
	}
	got, err := w.api.ImageBuild(ctx, what.Context, client.ImageBuildOptions{
		Tags: []string{w.tag}, Dockerfile: what.File, BuildArgs: args, Target: what.Target, NetworkMode: what.Network,
		NoCache: true, Remove: true, ForceRemove: true, Version: build.BuilderV1,
	})
	if err != nil {
		return w.failed(ctx, "build", err)
	}
	defer func() { _ = got.Body.Close() }()
	return w.follow(ctx, got.Body, what.Log)
}

// maxBuildLog bounds the engine's output of one build, in bytes.
const maxBuildLog = 1 << 30

var stepMade = regexp.MustCompile(`^ ---> ([0-9a-f]{12,64})$`)

// follow copies the build's output to log and records the images that its steps made, except those
// that FROM names.
func (w *work) follow(ctx context.Context, r io.Reader, log io.Writer) error {
	dec := json.NewDecoder(io.LimitReader(r, maxBuildLog))
	from := false
	var line bytes.Buffer
	for {
		var m struct {
			Stream string `json:"stream"`
			Error  string `json:"error"`
		}
		err := dec.Decode(&m)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return w.failed(ctx, "build", err)
		case m.Error != "":
			return fmt.Errorf("the build failed: %s: %w", m.Error, errdefs.ErrInvalidArgument)
		}
		if _, err := io.WriteString(log, m.Stream); err != nil {
			return fmt.Errorf("hand on what the build writes: %w", err)
		}
		for _, c := range []byte(m.Stream) {
			const most = 4096
			if c != '\n' {
				if line.Len() < most {
					line.WriteByte(c)
				}
				continue
			}
			text := line.String()
			line.Reset()
			if strings.HasPrefix(text, "Step ") {
				_, step, _ := strings.Cut(text, " : ")
				from = strings.HasPrefix(strings.ToUpper(step), "FROM ")
			} else if id := stepMade.FindStringSubmatch(text); id != nil && !from {
				w.made = append(w.made, id[1])
			}
		}
	}
}
