package volumes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// Layout of a workspace's directory:
//
//	workspace.json   metadata
//	content/         replaced as a whole by a restore
//	  state.json     number of the current generation, and recent changes
//	  disk/          see package quotadir; on its root:
//	    data         the first generation of the files, then data.1 and so on
//	    uppers/ID    upper layer of the overlay ID
//	overlays/ID.*    metadata of the overlay ID
//	merged/ID        mount point of the overlay ID while its lease is live
//	snapshots/ID     a copy of content, and snapshot.json
//
// A workspace of an earlier version has data and state.json beside workspace.json. It has no disk
// and no quota.
const (
	metaVersion   = 1
	metaFile      = "workspace.json"
	contentDir    = "content"
	stateFile     = "state.json"
	diskDir       = "disk"
	dataDir       = "data"
	uppersDir     = "uppers"
	overlaysDir   = "overlays"
	mergedDir     = "merged"
	snapshotsDir  = "snapshots"
	snapshotFile  = "snapshot.json"
	maxMeta       = 64 << 10
	maxState      = 16 << 20
	maxComparison = 256 << 20
)

// meta is the content of workspace.json.
type meta struct {
	Version   int       `json:"version"`
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	Shared    bool      `json:"shared"`
	Claim     *claim    `json:"claim,omitempty"`
}

// readMeta reads and checks the metadata of the workspace in dir.
func readMeta(dir string) (meta, error) {
	b, err := readBounded(filepath.Join(dir, metaFile), maxMeta)
	if err != nil {
		return meta{}, err
	}
	w, err := decodeMeta(b)
	if err != nil {
		return meta{}, err
	}
	if w.ID != filepath.Base(dir) {
		return meta{}, fmt.Errorf("directory contains the metadata of workspace %q", w.ID)
	}
	for _, name := range []string{contentDir, dataDir} {
		if fi, err := os.Lstat(filepath.Join(dir, name)); err == nil && fi.IsDir() {
			return w, nil
		}
	}
	return meta{}, errors.New("directory of files not found")
}

// readBounded reads a file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", path, limit)
	}
	return b, err
}

func decodeMeta(b []byte) (meta, error) {
	var w meta
	if err := decodeStrict(metaFile, b, &w); err != nil {
		return meta{}, err
	}
	if w.Version != metaVersion {
		return meta{}, fmt.Errorf("unsupported version %d of %s: this build reads %d", w.Version, metaFile, metaVersion)
	}
	if !namePattern.MatchString(w.Name) {
		return meta{}, fmt.Errorf("%s: invalid name %q: must match %s", metaFile, w.Name, namePattern)
	}
	return w, nil
}

// decodeStrict decodes one JSON object without unknown fields.
func decodeStrict(file string, b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("decode %s: %w", file, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("decode %s: unexpected data after the object", file)
	}
	return nil
}

// writeJSON replaces a file atomically and syncs it.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return hostfile.ReplaceSynced(path, append(b, '\n'), 0o600, nil)
}

// readJSON reads what writeJSON wrote. A missing file leaves v unchanged.
func readJSON(path string, limit int64, v any) error {
	b, err := readBounded(path, limit)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return decodeStrict(path, b, v)
}
