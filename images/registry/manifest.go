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

// Manifest is an undecoded manifest or index.
type Manifest struct {
	Raw       []byte
	MediaType string
	// Digest is the digest of Raw.
	Digest string
}

// accepted lists the supported manifest types. Signed manifests of schema 1 are not supported.
var accepted = strings.Join([]string{
	string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1),
	string(types.DockerManifestSchema2),
}, ", ")

// Manifest downloads the manifest that a reference names. A digest is checked.
func (c *Client) Manifest(ctx context.Context, r ref.Reference) (Manifest, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime,
		unavailable("%s did not answer within %s", r.Registry, askTime))
	defer cancel()
	raw, kind, err := c.small(ctx, r, "manifests", cmp.Or(r.Digest, r.Tag), maxAnswer)
	if err != nil {
		return Manifest{}, err
	}
	m := Manifest{Raw: raw, MediaType: kind, Digest: digest.FromBytes(raw).String()}
	if r.Digest != "" && m.Digest != r.Digest {
		return Manifest{}, refused("%s: registry sent a manifest with digest %s", r, m.Digest)
	}
	return m, nil
}

// Document downloads a small blob: a configuration or the payload of a signature.
func (c *Client) Document(ctx context.Context, r ref.Reference, sum string, size int64) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime,
		unavailable("%s did not answer within %s", r.Registry, askTime))
	defer cancel()
	if size < 0 || size > maxAnswer {
		return nil, refused("%s: blob %s has %d bytes, more than %d", r.Name(), sum, size, maxAnswer)
	}
	raw, _, err := c.small(ctx, r, "blobs", sum, size)
	if err != nil {
		return nil, err
	}
	if got := digest.FromBytes(raw).String(); got != sum || int64(len(raw)) != size {
		return nil, refused("%s: blob %s does not match: %d bytes with digest %s", r.Name(), sum,
			len(raw), got)
	}
	return raw, nil
}

// small downloads a resource of at most room bytes. It retries if the connection is lost.
func (c *Client) small(ctx context.Context, r ref.Reference, kind, what string, room int64) (raw []byte, media string,
	err error) {
	for try, pause := 1, c.o.Pause; ; try, pause = try+1, 2*pause {
		raw, media, err = c.smallOnce(ctx, r, kind, what, room)
		if err == nil || try == tries || !retryable(err) {
			return raw, media, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, "", err
		}
	}
}

func (c *Client) smallOnce(ctx context.Context, r ref.Reference, kind, what string, room int64) ([]byte, string,
	error) {
	resp, err := c.get(withBodyLimit(ctx, room), r, kind, what, 0)
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

// get sends a request and returns an error for responses without success.
func (c *Client) get(ctx context.Context, r ref.Reference, kind, what string, from int64) (*http.Response, error) {
	sess, err := c.session(ctx, r)
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
	resp, err := sess.Do(req)
	if err != nil {
		return nil, c.failed(ctx, "fetch "+r.String(), sess.authenticated, err)
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
		return resp, nil
	}
	defer resp.Body.Close()
	// The text of the registry is untrusted, and not needed to act on the error.
	_, _ = io.Copy(io.Discard, resp.Body) // allows reuse of the connection
	err = refusal(resp.StatusCode, "", sess.authenticated)
	if kind == "manifests" {
		err = fmt.Errorf("%s: %w", r, err)
	}
	return nil, err
}
