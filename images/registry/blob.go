package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
)

// Blob is what to fetch: its digest and its size as the manifest tells them.
type Blob struct {
	Digest string
	Size   int64
}

// PartSuffix is behind the name of a file that is not whole yet.
const PartSuffix = ".part"

const (
	// fruitless is how often in a row less than worth bytes may come before we
	// give up, most how often a connection may be cut all in all.
	fruitless = 5
	worth     = 64 << 10
	most      = 200
)

// Fetch brings a blob into a file. It goes on where an earlier Fetch, also of
// a process that was killed, has stopped: path+PartSuffix is what it has. The
// file has its name only once its content is what its digest says. Nobody else
// may fetch into the same path at the time. came is told how much there is,
// from time to time and from Fetch's own goroutine.
func (c *Client) Fetch(ctx context.Context, r ref.Reference, b Blob, path string, came func(bytes int64)) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() == b.Size {
		came(b.Size)
		return nil // it got its name after it was checked
	}
	part := path + PartSuffix
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return disk(fmt.Errorf("keep blob %s: %w", b.Digest, err))
	}
	defer f.Close()
	d := &download{c: c, r: r, b: b, f: f, came: came}
	if err := d.run(ctx); err != nil {
		err = disk(err)
		if errors.Is(err, errdefs.ErrResourceExhausted) || d.spoilt {
			err = errors.Join(err, os.Remove(part)) // gives the room back
		}
		return err
	}
	if err := errors.Join(f.Sync(), os.Rename(part, path)); err != nil {
		return disk(fmt.Errorf("keep blob %s: %w", b.Digest, err))
	}
	return syncDir(filepath.Dir(path))
}

// download is one blob on its way into its file.
type download struct {
	c    *Client
	r    ref.Reference
	b    Blob
	f    *os.File
	came func(int64)

	have    int64
	sum     digest.Digester
	resumed bool
	// spoilt says that what is in the file is of no use.
	spoilt bool
}

// run fetches until all is there and right.
func (d *download) run(ctx context.Context) error {
	if err := d.takeUp(ctx); err != nil {
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
		if context.Cause(ctx) != nil || !passing(err) {
			return fmt.Errorf("blob %s of %s: %w", d.b.Digest, d.r.Name(), err)
		}
		if failures++; d.have-before >= worth {
			failures, pause = 1, d.c.o.Pause
		}
		if failures >= fruitless || try >= most {
			return fmt.Errorf("blob %s of %s: given up after %d attempts with %d of %d bytes, which are kept: %w", d.b.Digest, d.r.Name(), try, d.have, d.b.Size, err)
		}
		d.c.o.Log.Info("download goes on after a cut", "blob", d.b.Digest, "bytes", d.have, "of", d.b.Size, "error", err)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, d.c.o.Patience)
	}
}

// takeUp reads what an earlier download has left.
func (d *download) takeUp(ctx context.Context) error {
	d.sum = digest.SHA256.Digester()
	n, err := io.Copy(d.sum.Hash(), &while{ctx, io.LimitReader(d.f, d.b.Size+1)})
	if err != nil {
		return fmt.Errorf("read what there is of blob %s: %w", d.b.Digest, err)
	}
	if n > d.b.Size {
		return d.restart()
	}
	d.have, d.resumed = n, n > 0
	d.came(n)
	return nil
}

// restart begins from nothing.
func (d *download) restart() error {
	d.have, d.sum, d.resumed = 0, digest.SHA256.Digester(), false
	d.came(0)
	if err := d.f.Truncate(0); err != nil {
		return fmt.Errorf("keep blob %s: %w", d.b.Digest, err)
	}
	return nil
}

// once fetches what is missing by one request.
func (d *download) once(ctx context.Context) error {
	if d.have == d.b.Size {
		return nil
	}
	resp, err := d.c.get(withRoom(ctx, d.b.Size), d.r, "blobs", d.b.Digest, d.have)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := d.place(resp); err != nil {
		return err
	}
	body := io.LimitReader(resp.Body, d.b.Size-d.have+1)
	if _, err := d.f.Seek(d.have, io.SeekStart); err != nil {
		return fmt.Errorf("keep blob: %w", err)
	}
	buffer := make([]byte, 128<<10)
	for {
		n, err := body.Read(buffer)
		if d.have+int64(n) > d.b.Size {
			d.spoilt = true
			return refused("the registry sends more than the %d bytes that the manifest names", d.b.Size)
		}
		if n > 0 {
			if _, err := d.f.Write(buffer[:n]); err != nil {
				return fmt.Errorf("keep blob: %w", err)
			}
			d.sum.Hash().Write(buffer[:n])
			d.have += int64(n)
			d.came(d.have)
		}
		switch {
		case err == io.EOF && d.have == d.b.Size:
			return nil
		case err == io.EOF:
			return unavailable("the connection was cut after %d of %d bytes", d.have, d.b.Size)
		case errors.Is(err, errLonger):
			d.spoilt = true
			return refused("the registry sends more than the %d bytes that the manifest names", d.b.Size)
		case err != nil:
			return d.c.failed(ctx, "read", false, err)
		}
	}
}

// place finds out what the answer is a piece of. A registry that knows no
// ranges sends all, from the first byte on.
func (d *download) place(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusRequestedRangeNotSatisfiable:
		if err := d.restart(); err != nil {
			return err
		}
		return unavailable("the registry has no bytes after those that are here")
	case http.StatusPartialContent:
		from, total, ok := contentRange(resp.Header.Get("Content-Range"))
		if !ok || from != d.have || total >= 0 && total != d.b.Size {
			d.spoilt = true
			return refused("the registry answers a request for bytes from %d on with %q", d.have, clip(resp.Header.Get("Content-Range")))
		}
	default:
		if d.have > 0 {
			if err := d.restart(); err != nil {
				return err
			}
		}
		if resp.ContentLength >= 0 && resp.ContentLength != d.b.Size {
			return refused("the registry says that it has %d bytes, the manifest says %d", resp.ContentLength, d.b.Size)
		}
	}
	return nil
}

// check compares with the digest. Wrong content that began with what an
// earlier process left is fetched once more, whole.
func (d *download) check() error {
	got := d.sum.Digest().String()
	if got == d.b.Digest {
		return nil
	}
	if d.resumed {
		if err := d.restart(); err != nil {
			return err
		}
		return unavailable("what was here of it is damaged")
	}
	d.spoilt = true
	return refused("its content has the digest %s", got)
}

func rangeFrom(n int64) string { return "bytes=" + strconv.FormatInt(n, 10) + "-" }

// contentRange reads "bytes 10-19/20"; a total of -1 is not known.
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

// while reads until ctx ends.
type while struct {
	ctx context.Context
	r   io.Reader
}

func (w *while) Read(p []byte) (int, error) {
	if err := context.Cause(w.ctx); err != nil {
		return 0, err
	}
	return w.r.Read(p)
}

// passing says whether trying again may help.
func passing(err error) bool {
	return errdefs.IsUnavailable(err) && !errors.Is(err, context.Canceled) && !errors.Is(err, errBusy)
}

func unavailable(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrUnavailable)
}

// disk gives a full disk its class.
func disk(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("the disk is full: %w (%w)", err, errdefs.ErrResourceExhausted)
	}
	return err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
