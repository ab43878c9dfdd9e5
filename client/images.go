package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Images lists the images, one entry for each name.
func (c *Client) Images(ctx context.Context) ([]v1.Image, error) {
	l, err := ask[v1.List[v1.Image]](ctx, c, newCall(http.MethodGet, "images"))
	return l.Items, err
}

// ImportImage sends an image: a rootfs tar, a docker-archive or an OCI layout
// as a tar, plain or with gzip. ref is the name it gets; "" takes the
// archive's own. size is the archive's, or -1 if it is not known.
func (c *Client) ImportImage(ctx context.Context, archive io.Reader, size int64, ref string) ([]v1.Image, error) {
	l, err := ask[v1.List[v1.Image]](ctx, c, newCall(http.MethodPost, "images").set("ref", ref).octets(archive, size))
	return l.Items, err
}

// RemoveImage removes a name, and the image with its last one.
func (c *Client) RemoveImage(ctx context.Context, ref string) error {
	return c.answer(ctx, newCall(http.MethodDelete, "images").set("ref", ref), nil)
}

// PullImage has the server bring an image from its registry, and waits for it.
// progress, which may be nil, is told how far it is, from PullImage's own
// goroutine. When ctx ends the pull does too, unless others wait for it; what
// came by then is taken up by the next.
func (c *Client) PullImage(ctx context.Context, r v1.PullRequest, progress func(v1.PullEvent)) ([]v1.Image, error) {
	k := newCall(http.MethodPost, "images", "pull")
	if progress == nil {
		l, err := post[v1.List[v1.Image]](ctx, c, k, r, nil)
		return l.Items, err
	}
	if _, err := k.json(r); err != nil {
		return nil, err
	}
	return c.imageEvents(ctx, k, progress)
}

// BuildImage has the server build an image from a Dockerfile. files is the
// context, a tar; progress, which may be nil, is told what the build writes,
// from BuildImage's own goroutine. When ctx ends the build does too.
func (c *Client) BuildImage(ctx context.Context, r v1.BuildRequest, files io.Reader, progress func(v1.PullEvent)) ([]v1.Image, error) {
	k := newCall(http.MethodPost, "images", "build").set("ref", r.Ref).set("file", r.File).set("target", r.Target).set("network", r.Network).flag("keep", r.Keep)
	if len(r.Args) > 0 {
		args, err := json.Marshal(r.Args)
		if err != nil {
			return nil, fmt.Errorf("encode build arguments: %w", err)
		}
		k.set("args", string(args))
	}
	k.octets(files, -1)
	if progress == nil {
		l, err := ask[v1.List[v1.Image]](ctx, c, k)
		return l.Items, err
	}
	return c.imageEvents(ctx, k, progress)
}

// imageEvents hands the events of an image on its way to progress, and returns
// what comes with the last.
func (c *Client) imageEvents(ctx context.Context, k *call, progress func(v1.PullEvent)) ([]v1.Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // which cuts the stream, if it ends early
	var images []v1.Image
	err := c.readEvents(ctx, k, func(kind string, data []byte) (bool, error) {
		var e v1.PullEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return true, fmt.Errorf("%w: an event that is no JSON: %w", ErrLost, err)
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

// CollectImages removes images that nothing needs, or with dry only tells which.
func (c *Client) CollectImages(ctx context.Context, dry bool) (v1.ImageCollection, error) {
	return ask[v1.ImageCollection](ctx, c, newCall(http.MethodPost, "images", "gc").flag("dry_run", dry))
}

// PinImage keeps an image from being collected, or lets it be again.
func (c *Client) PinImage(ctx context.Context, ref string, pinned bool) ([]v1.Image, error) {
	method := http.MethodDelete
	if pinned {
		method = http.MethodPut
	}
	l, err := ask[v1.List[v1.Image]](ctx, c, newCall(method, "images", "pin").set("ref", ref))
	return l.Items, err
}
