package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// maxAnswer bounds a JSON answer in bytes. It has room for two escaped output streams of the
// largest configurable size (256 MiB each).
const maxAnswer = 2 << 30

// Option changes one call.
type Option func(*call)

// IdempotencyKey makes a request that creates or runs something take effect at most once. A
// repeated request with the same key gets the first answer, for as long as the server keeps it. Use
// a new random key for each operation, at most 255 bytes of UTF-8; NewKey returns one.
func IdempotencyKey(key string) Option { return func(c *call) { c.key = key } }

// call is one HTTP request.
type call struct {
	method string
	path   []string // segments below /v1, not escaped
	query  url.Values
	accept string
	header http.Header
	body   io.Reader
	size   int64 // bytes in body; -1 if unknown
	key    string
}

func newCall(method string, path ...string) *call {
	return &call{method: method, path: path, query: url.Values{}, header: http.Header{}, accept: "application/json"}
}

// with applies opts.
func (k *call) with(opts []Option) *call {
	for _, o := range opts {
		o(k)
	}
	return k
}

func (k *call) set(name, value string) *call {
	if value != "" {
		k.query.Set(name, value)
	}
	return k
}

func (k *call) flag(name string, value bool) *call {
	if value {
		k.query.Set(name, "true")
	}
	return k
}

func (k *call) number(name string, n int64) *call {
	if n != 0 {
		k.query.Set(name, strconv.FormatInt(n, 10))
	}
	return k
}

func (k *call) duration(name string, d time.Duration) *call { return k.number(name, d.Milliseconds()) }

// json sets the body to v as JSON.
func (k *call) json(v any) (*call, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	k.body, k.size = bytes.NewReader(b), int64(len(b))
	k.header.Set("Content-Type", "application/json")
	return k, nil
}

// streamBody sets the body to a stream of size bytes, or of unknown size if size is -1. It does not
// close r.
func (k *call) streamBody(r io.Reader, size int64) *call {
	k.body, k.size = r, size
	k.header.Set("Content-Type", "application/octet-stream")
	return k
}

func (k *call) url(base string) string {
	b := base + "/v1"
	for _, p := range k.path {
		b += "/" + url.PathEscape(p)
	}
	if len(k.query) > 0 {
		b += "?" + k.query.Encode()
	}
	return b
}

// send sends the request and returns the response once its header has arrived. A status other than
// 2xx is returned as an error, with the body closed.
func (c *Client) send(ctx context.Context, k *call) (*http.Response, error) {
	body := k.body
	if _, memory := body.(*bytes.Reader); body != nil && !memory {
		body = io.NopCloser(body) // net/http would close the body, which belongs to the caller
	}
	req, err := http.NewRequestWithContext(ctx, k.method, k.url(c.base), body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if k.body != nil {
		req.ContentLength = k.size
		if k.size == 0 {
			req.Body = http.NoBody
		}
	}
	for name, values := range k.header {
		req.Header[name] = values
	}
	req.Header.Set("Accept", k.accept)
	if k.key != "" {
		req.Header.Set("Idempotency-Key", k.key)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.connectionError(ctx, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, c.readProblem(ctx, resp)
	}
	return resp, nil
}

// doJSON sends the request and decodes the JSON answer into out. If out is nil, it discards the
// body.
func (c *Client) doJSON(ctx context.Context, k *call, out any) error {
	resp, err := c.send(ctx, k)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxProblem)) // an emptied body lets the connection be reused
		return c.wrapReadError(ctx, err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return c.connectionError(ctx, err)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%w: the answer is not the JSON that was asked for: %w", ErrLost, err)
	}
	return nil
}

func (c *Client) wrapReadError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return c.connectionError(ctx, err)
}

// callJSON sends a request without a JSON body and decodes the answer.
func callJSON[T any](ctx context.Context, c *Client, k *call) (T, error) {
	var out T
	err := c.doJSON(ctx, k, &out)
	return out, err
}

// callJSONWithBody sends a request with a JSON body and decodes the answer.
func callJSONWithBody[T any](ctx context.Context, c *Client, k *call, body any, opts []Option) (T, error) {
	var out T
	k, err := k.with(opts).json(body)
	if err != nil {
		return out, err
	}
	err = c.doJSON(ctx, k, &out)
	return out, err
}
