package docker

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// image is what Create needs to know about an image in the engine.
type image struct {
	// id is what the engine runs. With the classic store it is Image.ID; the containerd store has
	// its own ids.
	id string
	// env and volumes are in its configuration and have to be undone.
	env     []string
	volumes []string
}

// Prepare makes the image known to the engine. Errors: NotFound if the engine lacks it and there is
// no archive; FailedPrecondition if the archive contained another image.
func (d *Driver) Prepare(ctx context.Context, img runtime.Image) error {
	_, err := d.prepare(ctx, img)
	if err != nil {
		return err
	}
	if d.mode == ModeStdio {
		_, err = d.guestVolume(ctx)
	}
	return err
}

func (d *Driver) prepare(ctx context.Context, img runtime.Image) (image, error) {
	if !strings.HasPrefix(img.ID, "sha256:") {
		return image{}, fmt.Errorf("docker: image %s: id %q is not a sha256 digest: %w", img.Ref, img.ID,
			errdefs.ErrInvalidArgument)
	}
	found, err := d.inspectImage(ctx, img.ID)
	if errdefs.IsNotFound(err) {
		found, err = d.findOrLoad(ctx, img)
	}
	if err != nil {
		return image{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.images[img.ID] = found
	return found, nil
}

// prepared returns what is known about an image. It asks the engine the first time.
func (d *Driver) prepared(ctx context.Context, img runtime.Image) (image, error) {
	d.mu.Lock()
	known, ok := d.images[img.ID]
	d.mu.Unlock()
	if ok {
		return known, nil
	}
	return d.prepare(ctx, img)
}

func (d *Driver) forget(img runtime.Image) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.images, img.ID)
}

// inspectImage returns the image that the engine knows by this id or name.
func (d *Driver) inspectImage(ctx context.Context, name string) (image, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	got, err := d.api.ImageInspect(ctx, name)
	if err != nil {
		return image{}, d.failed(ctx, "look for image "+name, err)
	}
	out := image{id: got.ID}
	if got.Config != nil {
		out.env = got.Config.Env
		for path := range got.Config.Volumes {
			out.volumes = append(out.volumes, path)
		}
	}
	slices.Sort(out.volumes)
	return out, nil
}

// findOrLoad handles an image whose id the engine does not know: the engine may have it under its
// own id, or has to load it.
func (d *Driver) findOrLoad(ctx context.Context, img runtime.Image) (image, error) {
	if img.Archive == "" {
		return image{}, fmt.Errorf("docker engine at %s: it does not have image %s (%s), and its archive is missing: "+
			"import the image: %w",
			d.host, img.Ref, img.ID, errdefs.ErrNotFound)
	}
	want, err := readArchive(img.Archive)
	if err != nil {
		return image{}, fmt.Errorf("docker: image %s: archive %s: %w", img.Ref, img.Archive, err)
	}
	if want.config != img.ID {
		return image{}, refused("image %s: archive %s holds %s, not %s: import the image again", img.Ref, img.Archive,
			want.config, img.ID)
	}
	names, err := d.load(ctx, img)
	if err != nil {
		return image{}, err
	}
	found, err := d.inspectImage(ctx, img.ID)
	if !errdefs.IsNotFound(err) {
		return found, err
	}
	// The containerd store names images by the digest of their manifest. A loaded image is the
	// right one if it has the layers that the archive's verified configuration names.
	for _, name := range append(names, want.tags...) {
		same, err := d.hasLayers(ctx, name, want.layers)
		if err != nil {
			return image{}, err
		}
		if same != "" {
			return d.inspectImage(ctx, same)
		}
	}
	return image{}, refused("image %s: the engine loaded %s, but has no image with its layers afterwards", img.Ref,
		img.Archive)
}

// hasLayers returns the engine's id of the image if it has exactly these layers.
func (d *Driver) hasLayers(ctx context.Context, name string, layers []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	got, err := d.api.ImageInspect(ctx, name)
	switch {
	case errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err):
		return "", nil
	case err != nil:
		return "", d.failed(ctx, "look for image "+name, err)
	case slices.Equal(got.RootFS.Layers, layers):
		return got.ID, nil
	}
	return "", nil
}

// load sends the archive to the engine and returns what the engine says it loaded.
func (d *Driver) load(ctx context.Context, img runtime.Image) ([]string, error) {
	f, err := os.Open(img.Archive)
	if err != nil {
		return nil, fmt.Errorf("docker: image %s: open archive: %w", img.Ref, err)
	}
	defer func() { _ = f.Close() }() // the client has closed what it sent
	body, err := d.api.ImageLoad(ctx, f, client.ImageLoadWithQuiet(true))
	if err != nil {
		return nil, d.failed(ctx, "load image "+img.Ref, err)
	}
	defer func() { _ = body.Close() }()
	said, err := messages(body)
	if err != nil {
		return nil, d.failed(ctx, "load image "+img.Ref, err)
	}
	var names []string
	for _, line := range strings.Split(strings.Join(said, ""), "\n") {
		for _, intro := range []string{"Loaded image ID: ", "Loaded image: "} {
			if name, ok := strings.CutPrefix(line, intro); ok {
				names = append(names, strings.TrimSpace(name))
			}
		}
	}
	return names, nil
}
