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

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// Import imports an image from a stream: a rootfs tar, a docker-archive or an OCI layout as a tar,
// each uncompressed or with gzip. ref becomes its name and selects one of several images; "" uses
// the name in the archive. An image that is already stored only gets the name. On error, the store
// does not change.
func (s *Store) Import(ctx context.Context, r io.Reader, ref string) (Image, error) {
	return s.importFrom(ctx, ref, func(stage string) (files, string, error) {
		return s.spool(ctx, r, filepath.Join(stage, "input"))
	})
}

// ImportPath is like Import for a file, or for a directory with an OCI layout. It does not read a
// file again that has not changed since its last import.
func (s *Store) ImportPath(ctx context.Context, path, ref string) (Image, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Image{}, fmt.Errorf("import %s: %w", path, err)
	}
	// O_NONBLOCK: opening a FIFO must not wait for a writer.
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
		return s.importFrom(ctx, ref, func(string) (files, string, error) { return dirFiles{root}, "", nil })
	case !info.Mode().IsRegular():
		return Image{}, invalid("import %s: not a file or directory", path)
	}
	return s.importFile(ctx, f, info, path, ref)
}

func (s *Store) importFile(ctx context.Context, f *os.File, info fs.FileInfo, path, ref string) (Image, error) {
	stamp := stampOf(info)
	if !isStable(info) {
		image, err := s.importFrom(ctx, ref, func(stage string) (files, string,
			error) {
			return s.spool(ctx, f, filepath.Join(stage, "input"))
		})
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
	image, err := s.importFrom(ctx, ref, func(stage string) (files, string, error) {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, "", fmt.Errorf("import: %w", err)
		}
		if _, err := s.lookup(sum, ref); err == nil {
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

// isStable reports that no other user can change the file between two reads.
func isStable(info fs.FileInfo) bool {
	const others = 0o022
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int64(stat.Uid) == int64(os.Geteuid())) && info.Mode()&others == 0
}

func stampOf(info fs.FileInfo) fileStamp {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileStamp{}
	}
	return fileStamp{Size: info.Size(), Changed: stat.Ctim.Nano(), Inode: stat.Ino}
}

// remember records the path of an imported archive to speed up the next import. It may fail.
func (s *Store) remember(path string, f fileStamp) {
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
		s.log.Warn("failed to record the path of an imported archive", "error", err)
	}
}

// lookup returns the image that an archive with this digest gave when it was imported before.
func (s *Store) lookup(sum, ref string) (id string, err error) {
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

// nameFor returns the name for an image: ref, or else its name in the archive.
func nameFor(ref, own string) (string, error) {
	if ref != "" {
		return ParseName(ref)
	}
	if !strings.Contains(own, ":") { // missing, or only a tag
		return "", invalid("image name is missing: the archive has none, so give one")
	}
	return ParseName(own)
}

// beginImport waits until no other import runs, and returns a temporary directory. end removes the
// directory and lets the next import run.
func (s *Store) beginImport(ctx context.Context) (stage string, end func(), err error) {
	unlock, err := s.importing.Lock(ctx, "")
	if err != nil {
		return "", nil, fmt.Errorf("wait for another import: %w", err)
	}
	stage, undo, err := s.stage()
	if err != nil {
		unlock()
		return "", nil, err
	}
	return stage, func() { undo(); unlock() }, nil
}

// importFrom imports the files that fetch returns. fetch returns no files if their digest is
// already known.
func (s *Store) importFrom(ctx context.Context, ref string, fetch func(stage string) (files, string, error)) (Image,
	error) {
	want := ""
	if ref != "" {
		var err error
		if want, err = ParseName(ref); err != nil {
			return Image{}, err
		}
	}
	stage, end, err := s.beginImport(ctx)
	if err != nil {
		return Image{}, err
	}
	defer end()
	content, sum, err := fetch(stage)
	if err != nil {
		return Image{}, err
	}
	if t, ok := content.(*tarFiles); ok && t.spooled {
		defer t.from.Close()
	}
	if id, err := s.lookup(sum, ref); err == nil {
		return s.addName(id, sum, ref)
	}
	if content == nil {
		return Image{}, fmt.Errorf("the image was removed during the import: %w", errdefs.ErrUnavailable)
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
		sum = "" // the same archive gives another image for another name
	}
	name, err := nameFor(ref, from.name)
	if err != nil {
		return Image{}, err
	}
	return s.keep(id, entry, stage, name, func(x *index) {
		if sum != "" {
			x.Seen[sum] = seenArchive{ID: id, Name: from.name}
		}
	})
}

// addName adds a name to a stored image.
func (s *Store) addName(id, sum, ref string) (Image, error) {
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

// keep moves the files that build created into place and adds the image to the index, with a name
// unless it is "". enter makes further changes to the index. Open removes the directory that a
// crash leaves in between.
func (s *Store) keep(id string, entry record, stage, name string, enter func(*index)) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	made, place := filepath.Join(stage, "image"), s.path("archives", hexOf(id))
	_, known := s.index.Images[id]
	if !known {
		if err := hostfile.RenameSynced(made, place); err != nil {
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
		err = errors.Join(err, os.Rename(place, made)) // the temporary directory is removed later
	}
	if err != nil {
		return Image{}, err
	}
	s.log.Info("image imported", "image", id, "ref", name, "format", entry.Format, "bytes", entry.Size)
	return s.view(id), nil
}

// build writes the archive of the image to stage/image and checks every layer.
func (s *Store) build(ctx context.Context, stage string, from source) (id string, entry record, err error) {
	dir := filepath.Join(stage, "image")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", record{}, diskError(fmt.Errorf("import image: %w", err))
	}
	w, err := createArchive(filepath.Join(dir, "archive.tar"), &spaceChecker{s: s})
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
		// Reads only the headers: the tar reader seeks past the content.
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
	if err := hostfile.ReplaceSynced(filepath.Join(dir, "config.json"), from.config, 0o600, nil); err != nil {
		return "", record{}, err
	}
	return id, record{Format: from.format, Architecture: s.arch, Size: size, Imported: time.Now().UTC(),
		Path: c.path()}, nil
}

// rootfsConfig returns the configuration for an image that came without one. It contains no time,
// so that the same tar gives the same image.
func rootfsConfig(arch, diff string) ([]byte, error) {
	c := config{Architecture: arch, OS: "linux"}
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{diff}
	return json.Marshal(c)
}

// spool writes a stream to disk uncompressed and returns the digest of the stream as received.
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
	_, err = copyAll(spaceCheckedFile{f, &spaceChecker{s: s}}, &bounded{ctx, unpacked, s.limits.Bytes})
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

// copyAll copies with a buffer size for files of hundreds of megabytes.
func copyAll(w io.Writer, r io.Reader) (int64, error) {
	type writer struct{ io.Writer } // hides ReadFrom, which would bypass the buffer
	type reader struct{ io.Reader }
	return io.CopyBuffer(writer{w}, reader{r}, make([]byte, 512<<10))
}

var zeros = bytes.Repeat([]byte{0}, 1024)
