package client

import (
	"context"
	"io"
	"net/http"

	v1 "orchestrator/client/v1"
)

// Version says what the server is and what it runs on.
func (c *Client) Version(ctx context.Context) (v1.Version, error) {
	return ask[v1.Version](ctx, c, newCall(http.MethodGet, "version"))
}

// Pools tells the state of the warm pools.
func (c *Client) Pools(ctx context.Context) ([]v1.Pool, error) {
	l, err := ask[v1.List[v1.Pool]](ctx, c, newCall(http.MethodGet, "pools"))
	return l.Items, err
}

// Images lists the imported images, one entry for each name.
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

// Down destroys every sandbox and stops the server. It returns when the server
// has begun; the server is gone when Version gives ErrNoServer.
func (c *Client) Down(ctx context.Context) error {
	return c.answer(ctx, newCall(http.MethodPost, "down"), nil)
}
