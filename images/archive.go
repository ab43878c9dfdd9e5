package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// EngineTag returns the name of an image in its docker-archive, and so in an engine that loaded it.
// It is derived from the id, so that loading never moves a tag of the user and `docker image prune`
// does not treat the image as dangling.
func EngineTag(id string) string { return "orchestrator/image:" + hexOf(id)[:16] }

// archive writes a docker-archive. It leaves space for each header and fills it in later, when size
// and digest of the layer are known.
type archive struct {
	file   *os.File
	room   *spaceChecker
	at     int64
	layers []string
	places map[string]span
}

const (
	tarBlock = 512
	// maxLayer is the maximum size in a plain tar header.
	maxLayer = 8<<30 - 1
)

func createArchive(path string, room *spaceChecker) (*archive, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("import image: %w", err)
	}
	return &archive{file: f, room: room, places: map[string]span{}}, nil
}

// layer copies one layer uncompressed and checks its digests. It returns the digest and position of
// the content. A layer that is already in the archive is not written again.
func (a *archive) layer(ctx context.Context, l layer, most int64) (diff string, at span, err error) {
	if at, done := a.places[l.diff]; done {
		a.layers = append(a.layers, l.diff)
		return l.diff, at, nil
	}
	r, size, err := l.open()
	if err != nil {
		return "", span{}, err
	}
	defer r.Close()
	blob, content := newDigester(), newDigester()
	var raw io.Reader = &bounded{ctx, r, size}
	if l.blob != "" && l.blob != l.diff {
		raw = io.TeeReader(raw, blob)
	}
	unpacked, _, err := plain(raw)
	if err != nil {
		return "", span{}, err
	}
	if _, err := a.file.Seek(a.at+tarBlock, io.SeekStart); err != nil {
		return "", span{}, fmt.Errorf("write layer: %w", err)
	}
	n, err := copyAll(io.MultiWriter(spaceCheckedFile{a.file, a.room}, content),
		&bounded{ctx, unpacked, min(most, maxLayer)})
	if err != nil {
		return "", span{}, fmt.Errorf("copy layer: %w", err)
	}
	if _, err := copyAll(io.Discard, raw); err != nil {
		return "", span{}, fmt.Errorf("read layer: %w", err)
	}
	diff = content.digest()
	if l.diff != "" && diff != l.diff {
		return "", span{}, invalid("content has digest %s, want %s as in the configuration", diff, clip.Message(l.diff))
	}
	if l.blob != "" && l.blob != l.diff && blob.digest() != l.blob {
		return "", span{}, invalid("blob has digest %s, want %s as in the manifest", blob.digest(), clip.Message(l.blob))
	}
	at = span{a.at + tarBlock, n}
	a.layers = append(a.layers, diff)
	a.places[diff] = at
	return diff, at, a.header(layerName(diff), at)
}

func layerName(diff string) string { return hexOf(diff) + ".tar" }

// header writes the header before a file's content, and the padding after it.
func (a *archive) header(name string, at span) error {
	var b bytes.Buffer
	header := tar.Header{Typeflag: tar.TypeReg, Name: name, Size: at.size, Mode: 0o644, Format: tar.FormatUSTAR}
	if err := tar.NewWriter(&b).WriteHeader(&header); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if _, err := a.file.WriteAt(b.Bytes(), at.offset-tarBlock); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	end := at.offset + at.size
	padding := (tarBlock - at.size%tarBlock) % tarBlock
	if _, err := a.file.WriteAt(zeros[:padding], end); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	a.at = end + padding
	return nil
}

func (a *archive) add(name string, content []byte) error {
	at := span{a.at + tarBlock, int64(len(content))}
	if _, err := a.file.WriteAt(content, at.offset); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return a.header(name, at)
}

// finish adds the configuration and the manifest and syncs the archive.
func (a *archive) finish(id string, config []byte) error {
	name := hexOf(id) + ".json"
	if err := a.add(name, config); err != nil {
		return err
	}
	m := dockerManifest{Config: name, RepoTags: []string{EngineTag(id)}}
	for _, diff := range a.layers {
		m.Layers = append(m.Layers, layerName(diff))
	}
	raw, err := json.Marshal([]dockerManifest{m})
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if err := a.add(manifestFile, raw); err != nil {
		return err
	}
	if _, err := a.file.WriteAt(zeros, a.at); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if err := a.file.Sync(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return hostfile.SyncDir(filepath.Dir(a.file.Name()))
}

func (a *archive) close() error { return a.file.Close() }

// readArchive opens an archive written by finish and finds its layers.
func readArchive(ctx context.Context, path, id string, limits Limits, arch string) (*os.File, source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, source{}, fmt.Errorf("read image %s: %w", id, errors.Join(err, errdefs.ErrDataLoss))
	}
	t, err := indexTar(ctx, f, limits)
	if err == nil {
		var s source
		if s, err = openDocker(t, "", limits, arch); err == nil {
			return f, s, nil
		}
	}
	return nil, source{}, errors.Join(fmt.Errorf("read image %s: %w", id, err), f.Close())
}
