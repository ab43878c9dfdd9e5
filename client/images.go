package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// List lists the images, with one entry for each name.
func (s Images) List(ctx context.Context) ([]v1.Image, error) {
	l, err := callJSON[v1.List[v1.Image]](ctx, s.c, newCall(http.MethodGet, "images"))
	return l.Items, err
}

// Import uploads an image and returns it under its names. archive is a rootfs tar, a
// docker-archive or an OCI layout as a tar, optionally gzipped. ref is the image's name; "" takes
// the names from the archive. size is the length of archive in bytes, or -1 if unknown.
func (s Images) Import(ctx context.Context, archive io.Reader, size int64, ref string) ([]v1.Image, error) {
	l, err := callJSON[v1.List[v1.Image]](
		ctx,
		s.c,
		newCall(http.MethodPost, "images").set("ref", ref).streamBody(archive, size),
	)
	return l.Items, err
}

// Remove removes a name, and the image if this was its last name.
func (s Images) Remove(ctx context.Context, ref string) error {
	return s.c.doJSON(ctx, newCall(http.MethodDelete, "images").set("ref", ref), nil)
}

// Pull makes the server pull an image from its registry and waits for it. If progress is not
// nil, Pull calls it with each event from this goroutine. When ctx ends, the pull is cancelled
// unless other callers wait for it. A later pull reuses the layers that arrived.
func (s Images) Pull(ctx context.Context, r v1.PullRequest, progress func(v1.PullEvent)) ([]v1.Image, error) {
	k := newCall(http.MethodPost, "images", "pull")
	if progress == nil {
		l, err := callJSONWithBody[v1.List[v1.Image]](ctx, s.c, k, r, nil)
		return l.Items, err
	}
	if _, err := k.json(r); err != nil {
		return nil, err
	}
	return s.c.imageEvents(ctx, k, progress)
}

// Build makes the server build an image from a Dockerfile and waits for it. files is the build
// context as a tar. If progress is not nil, Build calls it with the build's log and events
// from this goroutine. When ctx ends, the build is cancelled.
func (s Images) Build(
	ctx context.Context,
	r v1.BuildRequest,
	files io.Reader,
	progress func(v1.PullEvent),
) ([]v1.Image, error) {
	k := newCall(
		http.MethodPost,
		"images",
		"build",
	).set("ref", r.Ref).
		set("file", r.File).
		set("target", r.Target).
		set("network", r.Network).
		flag("keep", r.Keep)
	if len(r.Args) > 0 {
		args, err := json.Marshal(r.Args)
		if err != nil {
			return nil, fmt.Errorf("encode build arguments: %w", err)
		}
		k.set("args", string(args))
	}
	k.streamBody(files, -1)
	if progress == nil {
		l, err := callJSON[v1.List[v1.Image]](ctx, s.c, k)
		return l.Items, err
	}
	return s.c.imageEvents(ctx, k, progress)
}

// imageEvents calls progress for each event and returns the images of the last one.
func (c *Client) imageEvents(ctx context.Context, k *call, progress func(v1.PullEvent)) ([]v1.Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // closes the stream on an early return
	var images []v1.Image
	err := c.readEvents(ctx, k, func(kind string, data []byte) (bool, error) {
		var e v1.PullEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return true, fmt.Errorf("%w: invalid JSON in event: %w", ErrLost, err)
		}
		if kind == "end" {
			images = e.Images
			return true, nil
		}
		progress(e)
		return false, nil
	})
	return images, err
}

// Collect removes images that nothing uses. If dry is set, it only reports what it would
// remove.
func (s Images) Collect(ctx context.Context, dry bool) (v1.ImageCollection, error) {
	return callJSON[v1.ImageCollection](ctx, s.c, newCall(http.MethodPost, "images", "gc").flag("dry_run", dry))
}

// Pin protects an image from Collect, or removes that protection.
func (s Images) Pin(ctx context.Context, ref string, pinned bool) ([]v1.Image, error) {
	method := http.MethodDelete
	if pinned {
		method = http.MethodPut
	}
	l, err := callJSON[v1.List[v1.Image]](ctx, s.c, newCall(method, "images", "pin").set("ref", ref))
	return l.Items, err
}
