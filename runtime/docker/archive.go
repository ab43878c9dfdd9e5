package docker

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/containerd/errdefs"
)

// Limits for reading an archive: the number of entries, and the size of its JSON files.
const (
	maxArchiveEntries = 100_000
	maxArchiveJSON    = 4 << 20
)

// archived is the single image of a docker-archive.
type archived struct {
	config string   // digest of its configuration, computed here
	layers []string // diff ids that the configuration names
	tags   []string
}

// readArchive returns what an archive contains, without its layers.
func readArchive(file string) (a archived, err error) {
	f, err := os.Open(file)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var manifest []struct {
		Config   string   `json:"Config"`
		RepoTags []string `json:"RepoTags"`
	}
	// Entries come in any order: one pass for the manifest, which seeks over the layers, and one
	// for the configuration that it names.
	b, err := archiveFile(f, "manifest.json")
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(b, &manifest); err != nil {
		return a, fmt.Errorf("manifest.json: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if len(manifest) != 1 {
		return a, fmt.Errorf("it holds %d images, not one: %w", len(manifest), errdefs.ErrInvalidArgument)
	}
	if b, err = archiveFile(f, manifest[0].Config); err != nil {
		return a, err
	}
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return a, fmt.Errorf("configuration: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	sum := sha256.Sum256(b)
	return archived{config: "sha256:" + hex.EncodeToString(sum[:]), layers: config.RootFS.DiffIDs,
		tags: manifest[0].RepoTags}, nil
}

func archiveFile(f *os.File, name string) ([]byte, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	r := tar.NewReader(f)
	for range maxArchiveEntries {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
		}
		if path.Clean(h.Name) != path.Clean(name) {
			continue
		}
		if h.Typeflag != tar.TypeReg || h.Size > maxArchiveJSON {
			return nil, fmt.Errorf("%s is not a file of at most %d bytes: %w", name, maxArchiveJSON, errdefs.ErrInvalidArgument)
		}
		return io.ReadAll(r)
	}
	return nil, fmt.Errorf("it has no %s, so it is not a docker-archive: %w", name, errdefs.ErrInvalidArgument)
}
