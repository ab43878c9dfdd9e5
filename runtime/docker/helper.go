package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// undoTime bounds the removal of what a call leaves behind.
const undoTime = 30 * time.Second

// maxAnswer bounds what is read of an answer that is a stream of messages, in bytes.
const maxAnswer = 8 << 20

// withHelper creates a container that is never started, from an empty image, and removes both when
// do has returned. The engine checks its mounts, and its archive calls reach its volumes.
func (d *Driver) withHelper(ctx context.Context, mounts []mount.Mount, do func(id string) error) error {
	img, err := d.importEmpty(ctx)
	if err != nil {
		return err
	}
	defer d.cleanUp(ctx, "remove helper image", func(ctx context.Context) error {
		_, err := d.api.ImageRemove(ctx, img, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		return err
	})
	got, err := d.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{
			Image: img, Entrypoint: []string{"/never"}, NetworkDisabled: true, Labels: map[string]string{labelHelper: d.helper},
		},
		HostConfig: &container.HostConfig{
			NetworkMode: "none", CapDrop: []string{"ALL"}, LogConfig: container.LogConfig{Type: "none"}, Mounts: mounts,
		},
	})
	if err != nil {
		return d.failed(ctx, "create helper container", err)
	}
	defer d.cleanUp(ctx, "remove helper container", func(ctx context.Context) error {
		_, err := d.api.ContainerRemove(ctx, got.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		return err
	})
	return do(got.ID)
}

// cleanUp undoes something with its own deadline. What it cannot remove carries labelHelper, and
// the next process sweeps it.
func (d *Driver) cleanUp(ctx context.Context, what string, undo func(context.Context) error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), undoTime, errSlow)
	defer cancel()
	if err := undo(ctx); err != nil && !errdefs.IsNotFound(err) {
		d.log.Warn("helper left in the engine until the next start", "what", what, "error", err)
	}
}

// importEmpty creates an image with empty directories, at least one, and returns its id.
func (d *Driver) importEmpty(ctx context.Context, more ...string) (string, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	var err error
	for _, dir := range append([]string{"empty"}, more...) {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return "", fmt.Errorf("docker: make an empty layer: %w", err)
	}
	body, err := d.api.ImageImport(ctx, client.ImageImportSource{Source: &layer, SourceName: "-"}, "",
		client.ImageImportOptions{Changes: []string{fmt.Sprintf("LABEL %s=%s", labelHelper, d.helper)}})
	if err != nil {
		return "", d.failed(ctx, "import an empty image", err)
	}
	defer func() { _ = body.Close() }()
	said, err := messages(body)
	if err != nil {
		return "", d.failed(ctx, "import an empty image", err)
	}
	if len(said) == 0 || said[len(said)-1] == "" {
		return "", fmt.Errorf("docker engine at %s: import an empty image: it named no id: %w", d.host,
			errdefs.ErrUnavailable)
	}
	return said[len(said)-1], nil
}

// messages reads an answer of JSON messages to its end and returns their texts. It returns an error
// that the engine reports in one of them.
func messages(r io.Reader) ([]string, error) {
	var said []string
	dec := json.NewDecoder(io.LimitReader(r, maxAnswer))
	for {
		var m struct {
			Status string `json:"status"`
			Stream string `json:"stream"`
			Error  string `json:"error"`
		}
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return said, nil
		case err != nil:
			return said, fmt.Errorf("read the engine's messages: %w", err)
		case m.Error != "":
			return said, fmt.Errorf("%s: %w", m.Error, errdefs.ErrInvalidArgument)
		}
		said = append(said, m.Status+m.Stream)
	}
}

// sweep removes what an earlier process of this state directory left in the engine. Helpers live
// for one call, and only one process uses the directory.
func (d *Driver) sweep(ctx context.Context) {
	mine := client.Filters{}.Add("label", labelHelper+"="+d.helper)
	left, err := d.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: mine})
	if err != nil {
		d.log.Warn("helpers of earlier runs not looked for", "error", err)
		return
	}
	for _, c := range left.Items {
		d.cleanUp(ctx, "remove helper container", func(ctx context.Context) error {
			_, err := d.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			return err
		})
	}
	images, err := d.api.ImageList(ctx, client.ImageListOptions{Filters: mine})
	if err != nil {
		d.log.Warn("helper images of earlier runs not looked for", "error", err)
		return
	}
	for _, i := range images.Items {
		d.cleanUp(ctx, "remove helper image", func(ctx context.Context) error {
			_, err := d.api.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
			return err
		})
	}
}
