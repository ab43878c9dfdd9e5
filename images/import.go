package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Import takes in an image from a stream: a rootfs tar, a docker-archive or an
// OCI layout as a tar, each plain or with gzip. ref is the name it gets, and
// which image of several is meant; "" takes the archive's own name. An image
// that is here already only gets the name. On an error nothing is left.
func (s *Store) Import(ctx context.Context, r io.Reader, ref string) (Image, error) {
	return s.take(ctx, ref, func(stage string) (files, string, error) {
		return s.spool(ctx, r, filepath.Join(stage, "input"))
	})
}

// ImportPath is Import from a file or from a folder with an OCI layout. A file
// that has not changed since it was imported is not read again.
func (s *Store) ImportPath(ctx context.Context, path, ref string) (Image, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Image{}, fmt.Errorf("import %s: %w", path, err)
	}
	// Without O_NONBLOCK a FIFO would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, fmt.Errorf("import %s: no such file: %w", path, errdefs.ErrNotFound)
	}
	if err != nil {
		return Image{}, fmt.Errorf("import: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return Image{}, fmt.Errorf("import: %w", err)
	case info.IsDir():
		root, err := os.OpenRoot(path)
		if err != nil {
			return Image{}, fmt.Errorf("import: %w", err)
		}
		defer root.Close()
		return s.take(ctx, ref, func(string) (files, string, error) { return dirFiles{root}, "", nil })
	case !info.Mode().IsRegular():
		return Image{}, invalid("import %s: neither a file nor a folder", path)
	}
	return s.importFile(ctx, f, info, path, ref)
}

func (s *Store) importFile(ctx context.Context, f *os.File, info fs.FileInfo, path, ref string) (Image, error) {
	stamp := stampOf(info)
	if !settled(info) {
		image, err := s.take(ctx, ref, func(stage string) (files, string, error) { return s.spool(ctx, f, filepath.Join(stage, "input")) })
		if err != nil {
			return Image{}, fmt.Errorf("import %s: %w", path, err)
		}
		return image, nil
	}
	s.mu.Lock()
	known := s.index.Files[path]
	s.mu.Unlock()
	sum := known.Digest
	if known.Digest = ""; known != stamp || sum == "" {
		h := newDigester()
		if _, err := copyAll(h, &bounded{ctx, f, s.limits.Bytes}); err != nil {
			return Image{}, fmt.Errorf("import %s: %w", path, err)
		}
		sum = h.digest()
	}
	image, err := s.take(ctx, ref, func(stage string) (files, string, error) {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, "", fmt.Errorf("import: %w", err)
		}
		if _, err := s.seen(sum, ref); err == nil {
			return nil, sum, nil
		}
		if _, packed, err := plain(f); err != nil {
			return nil, "", err
		} else if packed {
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return nil, "", fmt.Errorf("import: %w", err)
			}
			return s.spool(ctx, f, filepath.Join(stage, "input"))
		}
		t, err := indexTar(ctx, f, s.limits)
		return t, sum, err
	})
	if err != nil {
		return Image{}, fmt.Errorf("import %s: %w", path, err)
	}
	if now, err := f.Stat(); err == nil && stampOf(now) == stamp {
		stamp.Digest = sum
		s.remember(path, stamp)
	}
	return image, nil
}

// settled says whether nobody else can change a file between two readings: what
// it is remembered as is by the first, and what it gives by the second.
func settled(info fs.FileInfo) bool {
	const others = 0o022
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int64(stat.Uid) == int64(os.Geteuid())) && info.Mode()&others == 0
}

func stampOf(info fs.FileInfo) file {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return file{}
	}
	return file{Size: info.Size(), Changed: stat.Ctim.Nano(), Inode: stat.Ino}
}

// remember notes where an archive lay. That is only a short cut: it may fail.
func (s *Store) remember(path string, f file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.index.Seen[f.Digest]; !known || s.index.Files[path] == f {
		return
	}
	err := s.update(func(x *index) {
		if len(x.Files) >= maxFiles {
			clear(x.Files)
		}
		x.Files[path] = f
	})
	if err != nil {
		s.log.Warn("the place of an imported archive is not remembered", "error", err)
	}
}

// seen finds what an archive gave when it was imported before.
func (s *Store) seen(sum, ref string) (id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, ok := s.index.Seen[sum]
	if !ok || sum == "" {
		return "", errdefs.ErrNotFound
	}
	if ref == "" {
		ref = before.Name
	}
	_, err = nameFor(ref, before.Name)
	return before.ID, err
}

// nameFor is the name an image is kept under.
func nameFor(ref, own string) (string, error) {
	if ref != "" {
		return ParseName(ref)
	}
	if !strings.Contains(own, ":") { // none, or no more than a tag
		return "", invalid("a name is needed: the archive has none")
	}
	return ParseName(own)
}

// take imports what fetch gives. fetch returns no files where their digest
// says that they have been imported before.
func (s *Store) take(ctx context.Context, ref string, fetch func(stage string) (files, string, error)) (Image, error) {
	want := ""
	if ref != "" {
		var err error
		if want, err = ParseName(ref); err != nil {
			return Image{}, err
		}
	}
	unlock, err := s.importing.lock(ctx, "")
	if err != nil {
		return Image{}, fmt.Errorf("wait for another import: %w", err)
	}
	defer unlock()
	stage, undo, err := s.stage()
	if err != nil {
		return Image{}, err
	}
	defer undo()
	content, sum, err := fetch(stage)
	if err != nil {
		return Image{}, err
	}
	if t, ok := content.(*tarFiles); ok && t.spooled {
		defer t.from.Close()
	}
	if id, err := s.seen(sum, ref); err == nil {
		return s.name(id, sum, ref)
	}
	if content == nil {
		return Image{}, fmt.Errorf("the image was removed meanwhile: %w", errdefs.ErrUnavailable)
	}
	from, err := open(content, want, s.limits, s.arch)
	if err != nil {
		return Image{}, err
	}
	if _, err := nameFor(ref, from.name); err != nil {
		return Image{}, err
	}
	id, entry, err := s.build(ctx, stage, from)
	if err != nil {
		return Image{}, err
	}
	if !from.only {
		sum = "" // another name would mean another image of the same archive
	}
	name, err := nameFor(ref, from.name)
	if err != nil {
		return Image{}, err
	}
	return s.keep(id, entry, stage, name, func(x *index) {
		if sum != "" {
			x.Seen[sum] = seen{ID: id, Name: from.name}
		}
	})
}

// name gives an image that is here already one more name.
func (s *Store) name(id, sum, ref string) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, err := nameFor(ref, s.index.Seen[sum].Name)
	if err != nil {
		return Image{}, err
	}
	s.Touch(id)
	if s.index.Refs[name] != id {
		if err := s.update(func(x *index) { x.Refs[name] = id }); err != nil {
			return Image{}, err
		}
	}
	return s.view(id), nil
}

// keep moves what build made to its place and enters it into the index, with a
// name if it has one, and what else enter does. A crash in between leaves a
// folder that Open sweeps away.
func (s *Store) keep(id string, entry record, stage, name string, enter func(*index)) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	made, place := filepath.Join(stage, "image"), s.path("archives", hexOf(id))
	_, known := s.index.Images[id]
	if !known {
		if err := errors.Join(os.Rename(made, place), syncDir(s.path("archives"))); err != nil {
			return Image{}, diskError(fmt.Errorf("keep image %s: %w", id, err))
		}
	}
	err := s.update(func(x *index) {
		if !known {
			x.Images[id] = entry
		}
		if name != "" {
			x.Refs[name] = id
		}
		enter(x)
	})
	if err != nil && !known {
		err = errors.Join(err, os.Rename(place, made)) // the stage goes away
	}
	if err != nil {
		return Image{}, err
	}
	s.log.Info("image imported", "image", id, "ref", name, "format", entry.Format, "bytes", entry.Size)
	return s.view(id), nil
}

// build makes the image's archive in stage/image and checks every layer.
func (s *Store) build(ctx context.Context, stage string, from source) (id string, entry record, err error) {
	dir := filepath.Join(stage, "image")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", record{}, diskError(fmt.Errorf("import image: %w", err))
	}
	w, err := createArchive(filepath.Join(dir, "archive.tar"), &room{s: s})
	if err != nil {
		return "", record{}, diskError(err)
	}
	defer func() { err = diskError(errors.Join(err, w.close())) }()
	left := s.limits.budget()
	raw, size := s.limits.Bytes, int64(0)
	for i, l := range from.layers {
		diff, at, err := w.layer(ctx, l, raw)
		if err != nil {
			return "", record{}, fmt.Errorf("layer %d: %w", i, err)
		}
		raw -= at.size
		size += at.size
		// Only the headers: the tar reader seeks over the content.
		if err := walk(ctx, io.NewSectionReader(w.file, at.offset, at.size), left, nil); err != nil {
			return "", record{}, fmt.Errorf("layer %d: %w", i, err)
		}
		if from.format == formatRootFS {
			if from.config, err = rootfsConfig(s.arch, diff); err != nil {
				return "", record{}, err
			}
		}
	}
	c, err := readConfig(from.config, len(from.layers), s.limits.Layers, s.arch)
	if err != nil {
		return "", record{}, err
	}
	id = digest.FromBytes(from.config).String()
	if err := w.finish(id, from.config); err != nil {
		return "", record{}, err
	}
	if err := writeFile(filepath.Join(dir, "config.json"), from.config, filepath.Join(dir, ".config")); err != nil {
		return "", record{}, err
	}
	return id, record{Format: from.format, Architecture: s.arch, Size: size, Imported: time.Now().UTC(), Path: c.path()}, nil
}

// rootfsConfig is the configuration of an image that came without one. There
// is no time in it, so that the same tar is the same image.
func rootfsConfig(arch, diff string) ([]byte, error) {
	c := config{Architecture: arch, OS: "linux"}
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{diff}
	return json.Marshal(c)
}

// spool brings a stream to disk without its compression, and gives the digest
// of the stream as it came.
func (s *Store) spool(ctx context.Context, r io.Reader, to string) (files, string, error) {
	h := newDigester()
	raw := io.TeeReader(&bounded{ctx, r, s.limits.Bytes}, h)
	unpacked, packed, err := plain(raw)
	if err != nil {
		return nil, "", err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, "", diskError(fmt.Errorf("import image: %w", err))
	}
	_, err = copyAll(into{f, &room{s: s}}, &bounded{ctx, unpacked, s.limits.Bytes})
	if err == nil && packed {
		_, err = copyAll(io.Discard, raw)
	}
	if err != nil {
		return nil, "", diskError(errors.Join(fmt.Errorf("read archive: %w", err), f.Close()))
	}
	t, err := indexTar(ctx, f, s.limits)
	if err != nil {
		return nil, "", errors.Join(err, f.Close())
	}
	t.spooled = true
	return t, h.digest(), nil
}

// copyAll copies with a buffer that suits files of hundreds of megabytes.
func copyAll(w io.Writer, r io.Reader) (int64, error) {
	type writer struct{ io.Writer } // hides ReadFrom, which would not use the buffer
	type reader struct{ io.Reader }
	return io.CopyBuffer(writer{w}, reader{r}, make([]byte, 512<<10))
}

var zeros = bytes.Repeat([]byte{0}, 1024)
