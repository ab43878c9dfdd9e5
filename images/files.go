package images

import (
	"archive/tar"
	"bufio"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// files gives access to the content of an archive or directory by cleaned name.
type files interface {
	// open returns errNoFile if name is not a regular file.
	open(name string) (io.ReadCloser, int64, error)
	has(name string) bool
}

var errNoFile = errors.New("no such file in the archive")

// maxDocument bounds each JSON document in an archive, in bytes. Registries have the same limit.
const maxDocument = 4 << 20

// document reads a small file.
func document(f files, name string) ([]byte, error) {
	r, size, err := f.open(name)
	if err != nil {
		return nil, invalid("%q: %v", clip.Message(name), err)
	}
	defer r.Close()
	if size > maxDocument {
		return nil, invalid("%q has %d bytes, more than %d", clip.Message(name), size, maxDocument)
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxDocument))
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", clip.Message(name), err)
	}
	return raw, nil
}

// span is the position of a file's content in an uncompressed tar.
type span struct{ offset, size int64 }

// tarFiles is an uncompressed tar on disk.
type tarFiles struct {
	from  *os.File
	size  int64
	spans map[string]span
	links map[string]string // older docker-archives link identical layers
	count int
	// spooled reports that from is a temporary copy that must be closed.
	spooled bool
}

// indexTar records the positions of the regular files of a tar without reading them. It records the
// first maxNoted entries, which is more than an image archive has; a rootfs has far more.
func indexTar(ctx context.Context, f *os.File, limits Limits) (*tarFiles, error) {
	const maxNoted = 4096
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	t := &tarFiles{from: f, size: info.Size(), spans: map[string]span{}, links: map[string]string{}}
	section := io.NewSectionReader(f, 0, t.size)
	for r := tar.NewReader(section); ; t.count++ {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, invalid("archive is an invalid or damaged tar: %v", err)
		}
		if t.count >= limits.Entries {
			return nil, fmt.Errorf("archive has more than %d entries: %w", limits.Entries, errdefs.ErrResourceExhausted)
		}
		name := path.Clean("/" + header.Name)[1:]
		at, err := section.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		top := name == manifestFile || name == layoutFile || name == indexFile
		if len(t.spans)+len(t.links) >= maxNoted && !top {
			continue
		}
		delete(t.spans, name) // the last entry with a name wins
		delete(t.links, name)
		switch header.Typeflag {
		case tar.TypeReg:
			t.spans[name] = span{at, header.Size}
		case tar.TypeSymlink:
			t.links[name] = path.Join("/", path.Dir(name), header.Linkname)[1:]
		case tar.TypeLink:
			t.links[name] = path.Clean("/" + header.Linkname)[1:]
		}
	}
	if err := t.ended(); err != nil {
		return nil, err
	}
	return t, nil
}

// ended checks the end mark of a tar, to detect one that was cut between two entries.
func (t *tarFiles) ended() error {
	const block = 512
	if t.count == 0 {
		return invalid("archive is empty")
	}
	last := make([]byte, block)
	if _, err := t.from.ReadAt(last, t.size-block); err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	for _, b := range last {
		if b != 0 {
			return invalid("archive is truncated: end mark not found")
		}
	}
	return nil
}

func (t *tarFiles) find(name string) (span, bool) {
	if s, ok := t.spans[name]; ok {
		return s, true
	}
	target, ok := t.links[name]
	if !ok {
		return span{}, false
	}
	s, ok := t.spans[target]
	return s, ok
}

func (t *tarFiles) has(name string) bool { _, ok := t.find(name); return ok }

func (t *tarFiles) open(name string) (io.ReadCloser, int64, error) {
	s, ok := t.find(path.Clean("/" + name)[1:])
	if !ok {
		return nil, 0, errNoFile
	}
	return io.NopCloser(io.NewSectionReader(t.from, s.offset, s.size)), s.size, nil
}

// dirFiles is a directory. Links cannot leave it.
type dirFiles struct{ root *os.Root }

func (d dirFiles) has(name string) bool {
	info, err := d.root.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

func (d dirFiles) open(name string) (io.ReadCloser, int64, error) {
	f, err := d.root.OpenFile(strings.TrimPrefix(path.Clean("/"+name), "/"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errNoFile, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNoFile
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// plain returns r decompressed and reports whether it was compressed. It supports only gzip and
// names other common formats in the error.
func plain(r io.Reader) (io.Reader, bool, error) {
	buffered := bufio.NewReaderSize(r, 256<<10)
	start, _ := buffered.Peek(tarBlock) // a tar is at least one block long
	if len(start) == tarBlock && string(start[257:262]) == "ustar" {
		return buffered, false, nil // a name may look like a magic number
	}
	for magic, name := range map[string]string{"\x28\xb5\x2f\xfd": "zstd", "BZh": "bzip2", "\xfd7zXZ\x00": "xz"} {
		if strings.HasPrefix(string(start), magic) {
			return nil, false, fmt.Errorf("compressed with %s, but only gzip is supported: decompress it first: %w",
				name, errdefs.ErrNotImplemented)
		}
	}
	if !strings.HasPrefix(string(start), "\x1f\x8b") {
		return buffered, false, nil
	}
	unzipped, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, false, invalid("gzip: %v", err)
	}
	return unzipped, true, nil
}

// bounded is a reader that fails after left bytes, unlike io.LimitReader. It also stops when ctx
// ends and classifies gzip errors.
type bounded struct {
	ctx  context.Context
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := context.Cause(b.ctx); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("image is larger than allowed: %w", errdefs.ErrResourceExhausted)
	}
	if corrupt := flate.CorruptInputError(0); errors.As(err, &corrupt) || errors.Is(err, gzip.ErrChecksum) ||
		errors.Is(err, gzip.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = invalid("damaged archive: %v", err)
	}
	return n, err
}

// digester computes the SHA-256 digest of what is written to it.
type digester struct{ hash.Hash }

func newDigester() digester { return digester{sha256.New()} }

func (d digester) digest() string { return digest.NewDigest(digest.SHA256, d.Hash).String() }
