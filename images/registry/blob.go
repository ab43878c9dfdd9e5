package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// Blob is a blob to download, with digest and size in bytes as in the manifest.
type Blob struct {
	Digest string
	Size   int64
}

// PartSuffix is appended to the name of an incomplete file.
const PartSuffix = ".part"

const (
	// A download is given up after fruitless attempts in a row that each got less than worth bytes,
	// and after maxAttempts in total.
	fruitless   = 5
	worth       = 64 << 10
	maxAttempts = 200
)

// tooLong is the format of the error for a body that is longer than the blob.
const tooLong = "registry sent more than the %d bytes in the manifest"

// Fetch downloads a blob into a file. It resumes an earlier download from path+PartSuffix, even
// after a crash. The file gets its final name only after its digest is checked. Only one Fetch per
// path may run at a time. came is called with the number of bytes so far, in the goroutine of the
// caller.
func (c *Client) Fetch(ctx context.Context, r ref.Reference, b Blob, path string, came func(bytes int64)) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() == b.Size {
		came(b.Size)
		return nil // files with the final name were checked
	}
	part := path + PartSuffix
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return disk(fmt.Errorf("write blob %s: %w", b.Digest, err))
	}
	defer f.Close()
	d := &download{c: c, r: r, b: b, f: f, came: came}
	if err := d.run(ctx); err != nil {
		err = disk(err)
		if errors.Is(err, errdefs.ErrResourceExhausted) || d.spoilt {
			err = errors.Join(err, os.Remove(part)) // frees the space
		}
		return err
	}
	err = f.Sync()
	if err == nil {
		err = hostfile.RenameSynced(part, path)
	}
	if err != nil {
		return disk(fmt.Errorf("write blob %s: %w", b.Digest, err))
	}
	return nil
}

// download is the state of one Fetch.
type download struct {
	c    *Client
	r    ref.Reference
	b    Blob
	f    *os.File
	came func(int64)

	have    int64
	sum     digest.Digester
	resumed bool
	// spoilt reports that the file content is unusable.
	spoilt bool
}

// run downloads until the blob is complete and its digest matches.
func (d *download) run(ctx context.Context) error {
	if err := d.resume(ctx); err != nil {
		return err
	}
	failures := 0
	for try, pause := 1, d.c.o.Pause; ; try++ {
		before := d.have
		err := d.once(ctx)
		if err == nil {
			if err = d.check(); err == nil {
				return nil
			}
		}
		if context.Cause(ctx) != nil || !retryable(err) {
			return fmt.Errorf("blob %s of %s: %w", d.b.Digest, d.r.Name(), err)
		}
		if failures++; d.have-before >= worth {
			failures, pause = 1, d.c.o.Pause
		}
		if failures >= fruitless || try >= maxAttempts {
			return fmt.Errorf("blob %s of %s: failed after %d attempts with %d of %d bytes, which are kept: %w",
				d.b.Digest, d.r.Name(), try, d.have, d.b.Size, err)
		}
		d.c.o.Log.Info("download interrupted; will retry", "blob", d.b.Digest, "bytes", d.have, "of", d.b.Size, "error",
			err)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, d.c.o.Patience)
	}
}

// resume reads the content left by an earlier download.
func (d *download) resume(ctx context.Context) error {
	d.sum = digest.SHA256.Digester()
	n, err := io.Copy(d.sum.Hash(), &contextReader{ctx, io.LimitReader(d.f, d.b.Size+1)})
	if err != nil {
		return fmt.Errorf("read partial blob %s: %w", d.b.Digest, err)
	}
	if n > d.b.Size {
		return d.restart()
	}
	d.have, d.resumed = n, n > 0
	d.came(n)
	return nil
}

// restart discards the content.
func (d *download) restart() error {
	d.have, d.sum, d.resumed = 0, digest.SHA256.Digester(), false
	d.came(0)
	if err := d.f.Truncate(0); err != nil {
		return fmt.Errorf("write blob %s: %w", d.b.Digest, err)
	}
	return nil
}

// once sends one request for the missing bytes.
func (d *download) once(ctx context.Context) error {
	if d.have == d.b.Size {
		return nil
	}
	resp, err := d.c.get(withBodyLimit(ctx, d.b.Size), d.r, "blobs", d.b.Digest, d.have)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := d.checkRange(resp); err != nil {
		return err
	}
	body := io.LimitReader(resp.Body, d.b.Size-d.have+1)
	if _, err := d.f.Seek(d.have, io.SeekStart); err != nil {
		return fmt.Errorf("write blob: %w", err)
	}
	buffer := make([]byte, 128<<10)
	for {
		n, err := body.Read(buffer)
		if d.have+int64(n) > d.b.Size {
			d.spoilt = true
			return refused(tooLong, d.b.Size)
		}
		if n > 0 {
			if _, err := d.f.Write(buffer[:n]); err != nil {
				return fmt.Errorf("write blob: %w", err)
			}
			d.sum.Hash().Write(buffer[:n])
			d.have += int64(n)
			d.came(d.have)
		}
		switch {
		case err == io.EOF && d.have == d.b.Size:
			return nil
		case err == io.EOF:
			return unavailable("connection closed after %d of %d bytes", d.have, d.b.Size)
		case errors.Is(err, errLonger):
			d.spoilt = true
			return refused(tooLong, d.b.Size)
		case err != nil:
			return d.c.failed(ctx, "read", false, err)
		}
	}
}

// checkRange checks which part of the blob the response contains. A registry without range support
// sends all of it, and the download restarts.
func (d *download) checkRange(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusRequestedRangeNotSatisfiable:
		if err := d.restart(); err != nil {
			return err
		}
		return unavailable("registry has no bytes after the downloaded ones")
	case http.StatusPartialContent:
		from, total, ok := contentRange(resp.Header.Get("Content-Range"))
		if !ok || from != d.have || total >= 0 && total != d.b.Size {
			d.spoilt = true
			return refused("registry answered a request for bytes from %d with range %q", d.have,
				clip.Message(resp.Header.Get("Content-Range")))
		}
	default:
		if d.have > 0 {
			if err := d.restart(); err != nil {
				return err
			}
		}
		if resp.ContentLength >= 0 && resp.ContentLength != d.b.Size {
			return refused("registry reports %d bytes, but the manifest has %d", resp.ContentLength, d.b.Size)
		}
	}
	return nil
}

// check compares the digest. If a resumed download does not match, the blob is downloaded again
// from the start.
func (d *download) check() error {
	got := d.sum.Digest().String()
	if got == d.b.Digest {
		return nil
	}
	if d.resumed {
		if err := d.restart(); err != nil {
			return err
		}
		return unavailable("partial download was damaged")
	}
	d.spoilt = true
	return refused("content has digest %s", got)
}

func rangeFrom(n int64) string { return "bytes=" + strconv.FormatInt(n, 10) + "-" }

// contentRange parses a header such as "bytes 10-19/20". An unknown total is -1.
func contentRange(s string) (from, total int64, ok bool) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, false
	}
	span, size, ok := strings.Cut(rest, "/")
	first, _, dash := strings.Cut(span, "-")
	if !ok || !dash {
		return 0, 0, false
	}
	from, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if size == "*" {
		return from, -1, true
	}
	total, err = strconv.ParseInt(size, 10, 64)
	return from, total, err == nil
}

// contextReader reads until ctx ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (w *contextReader) Read(p []byte) (int, error) {
	if err := context.Cause(w.ctx); err != nil {
		return 0, err
	}
	return w.r.Read(p)
}

// retryable reports whether a new attempt may succeed.
func retryable(err error) bool {
	return errdefs.IsUnavailable(err) && !errors.Is(err, context.Canceled) && !errors.Is(err, errBusy)
}

func unavailable(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrUnavailable)
}

// disk adds the class ResourceExhausted if the disk is full.
func disk(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("the disk is full: %w (%w)", err, errdefs.ErrResourceExhausted)
	}
	return err
}
