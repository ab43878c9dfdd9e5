package registry

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
)

// Manifest is a manifest or an index as it came.
type Manifest struct {
	Raw       []byte
	MediaType string
	// Digest is that of Raw.
	Digest string
}

// accepted are the manifests that we can read. Signed ones of the first schema
// are asked for by nobody.
var accepted = strings.Join([]string{
	string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
}, ", ")

// Manifest fetches what a reference names: by its digest if it has one, which
// is checked, else by its tag.
func (c *Client) Manifest(ctx context.Context, r ref.Reference) (Manifest, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, unavailable("%s did not answer within %s", r.Registry, askTime))
	defer cancel()
	raw, kind, err := c.small(ctx, r, "manifests", cmp.Or(r.Digest, r.Tag), maxAnswer)
	if err != nil {
		return Manifest{}, err
	}
	m := Manifest{Raw: raw, MediaType: kind, Digest: digest.FromBytes(raw).String()}
	if r.Digest != "" && m.Digest != r.Digest {
		return Manifest{}, refused("%s: the registry sent a manifest with the digest %s", r, m.Digest)
	}
	return m, nil
}

// Document fetches a small blob whole: a configuration, a signature's payload.
func (c *Client) Document(ctx context.Context, r ref.Reference, sum string, size int64) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, unavailable("%s did not answer within %s", r.Registry, askTime))
	defer cancel()
	if size < 0 || size > maxAnswer {
		return nil, refused("%s: blob %s has %d bytes, more than %d", r.Name(), sum, size, maxAnswer)
	}
	raw, _, err := c.small(ctx, r, "blobs", sum, size)
	if err != nil {
		return nil, err
	}
	if got := digest.FromBytes(raw).String(); got != sum || int64(len(raw)) != size {
		return nil, refused("%s: blob %s is not what its digest says: it has %d bytes and the digest %s", r.Name(), sum, len(raw), got)
	}
	return raw, nil
}

// small fetches something whole, at most room bytes. A connection that is cut
// is tried again.
func (c *Client) small(ctx context.Context, r ref.Reference, kind, what string, room int64) (raw []byte, media string, err error) {
	for try, pause := 1, c.o.Pause; ; try, pause = try+1, 2*pause {
		raw, media, err = c.smallOnce(ctx, r, kind, what, room)
		if err == nil || try == tries || !passing(err) {
			return raw, media, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, "", err
		}
	}
}

func (c *Client) smallOnce(ctx context.Context, r ref.Reference, kind, what string, room int64) ([]byte, string, error) {
	resp, err := c.get(withRoom(ctx, room), r, kind, what, 0)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, "", c.failed(ctx, "read "+kind+" of "+r.String(), false, err)
	}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		media = ""
	}
	return raw, media, nil
}

// get sends a request, and gives answers that refuse their class.
func (c *Client) get(ctx context.Context, r ref.Reference, kind, what string, from int64) (*http.Response, error) {
	way, err := c.client(ctx, r)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url(r, kind, what), nil)
	if err != nil {
		return nil, refused("%s: %v", r, err)
	}
	if kind == "manifests" {
		req.Header.Set("Accept", accepted)
	}
	if from > 0 {
		req.Header.Set("Range", rangeFrom(from))
	}
	resp, err := way.Do(req)
	if err != nil {
		return nil, c.failed(ctx, "fetch "+r.String(), way.known, err)
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
		return resp, nil
	}
	defer resp.Body.Close()
	// The registry's words are foreign, and not needed to say what to do.
	_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be used again
	err = refusal(resp.StatusCode, "", way.known)
	if kind == "manifests" {
		err = fmt.Errorf("%s: %w", r, err)
	}
	return nil, err
}
