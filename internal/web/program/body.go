package program

import (
	"bufio"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"compress/flate"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

const (
	// maxLayers is the maximum number of content encodings of a body.
	maxLayers = 3
	// zstdWindow is the maximum window size that RFC 9659 allows, in bytes.
	zstdWindow = 8 << 20
)

// errPacked ends a body with much compressed and little decompressed data.
var errPacked = errors.New("compressed body is larger than the limit of its content")

// readBody reads at most limit decompressed bytes. On error it also returns what was read before.
func readBody(ctx context.Context, res *http.Response, limit int64, a *web.Answer) (*body, error) {
	b := &body{}
	b.mediaType, b.charset = mediaType(res.Header.Get("Content-Type"))
	plain, err := unpack(res, limit)
	if err != nil {
		return nil, bodyFault(ctx, err)
	}
	defer plain.Close()
	b.data, err = io.ReadAll(io.LimitReader(plain, limit+1))
	if int64(len(b.data)) > limit {
		b.data, b.cut = b.data[:limit], true
	}
	a.Bytes, a.Truncated = int64(len(b.data)), b.cut
	if err != nil {
		return b, bodyFault(ctx, err)
	}
	return b, nil
}

// mediaType returns media type and charset of a Content-Type in lower case. For an invalid field,
// it returns the part before the parameters.
func mediaType(field string) (media, charset string) {
	media, params, err := mime.ParseMediaType(field)
	if err != nil {
		media, _, _ = strings.Cut(field, ";")
		media = strings.ToLower(strings.TrimSpace(media))
	}
	return oneLine(media, 100), strings.ToLower(strings.TrimSpace(params["charset"]))
}

func bodyFault(ctx context.Context, err error) error {
	var f *fault
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &f):
		return f
	case errors.Is(err, io.ErrUnexpectedEOF):
		return faultf(web.FaultProtocol, "body is shorter than announced")
	default:
		return faultf(web.FaultProtocol, "read the body: %v", err)
	}
}

// unpack returns the body with its content encodings decoded.
func unpack(res *http.Response, limit int64) (io.ReadCloser, error) {
	var encodings []string
	for _, field := range res.Header.Values("Content-Encoding") {
		for e := range strings.SplitSeq(field, ",") {
			if e = strings.ToLower(strings.TrimSpace(e)); e != "" && e != "identity" {
				encodings = append(encodings, e)
			}
		}
	}
	if len(encodings) > maxLayers {
		return nil, faultf(web.FaultProtocol, "body has %d content encodings, more than %d", len(encodings),
			maxLayers)
	}
	if len(encodings) == 0 {
		return res.Body, nil
	}
	u := &unpacker{}
	u.next = &bounded{r: res.Body, left: limit + limit/8 + 64<<10}
	for i := len(encodings) - 1; i >= 0; i-- {
		if err := u.add(encodings[i]); err != nil {
			u.Close()
			return nil, err
		}
	}
	return u, nil
}

// unpacker is a chain of decoders.
type unpacker struct {
	next  io.Reader
	close []func()
}

func (u *unpacker) Read(p []byte) (int, error) { return u.next.Read(p) }

func (u *unpacker) Close() error {
	for _, c := range u.close {
		c()
	}
	return nil
}

func (u *unpacker) add(encoding string) error {
	// An empty body has nothing to decode: responses to HEAD, 204 and 304.
	in := bufio.NewReader(u.next)
	if _, err := in.Peek(1); err == io.EOF {
		u.next = in
		return nil
	}
	var err error
	switch encoding {
	case "gzip", "x-gzip":
		u.next, err = gzip.NewReader(in)
	case "deflate":
		u.next, err = inflate(in)
	case "br":
		u.next = brotli.NewReader(in)
	case "zstd":
		var d *zstd.Decoder
		d, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderMaxMemory(2*zstdWindow))
		if err == nil {
			u.next = d
			u.close = append(u.close, d.Close)
		}
	default:
		return faultf(web.FaultProtocol, "body has unsupported content encoding %q", oneLine(encoding, 40))
	}
	return err
}

// inflate reads deflate data in the zlib format, as specified, or raw, as some hosts send it.
func inflate(in *bufio.Reader) (io.Reader, error) {
	b, err := in.Peek(2)
	if err != nil {
		return nil, err
	}
	if b[0]&0x0f == 8 && (uint(b[0])<<8|uint(b[1]))%31 == 0 {
		return zlib.NewReader(in)
	}
	return flate.NewReader(in), nil
}

// bounded fails after left bytes, to end bodies that decompress to nothing.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errPacked
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
