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
)

const (
	metaVersion = 1
	metaFile    = "workspace.json"
	dataDir     = "data"
	maxMeta     = 64 << 10
)

// meta is what is kept of a workspace beside its data.
type meta struct {
	Version   int       `json:"version"`
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	Shared    bool      `json:"shared"`
}

// readMeta reads and checks the metadata of the workspace in dir.
func readMeta(dir string) (meta, error) {
	f, err := os.Open(filepath.Join(dir, metaFile))
	if err != nil {
		return meta{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMeta))
	if err != nil {
		return meta{}, err
	}
	w, err := decodeMeta(b)
	if err != nil {
		return meta{}, err
	}
	if w.ID != filepath.Base(dir) {
		return meta{}, fmt.Errorf("the folder holds the metadata of %q", w.ID)
	}
	if fi, err := os.Lstat(filepath.Join(dir, dataDir)); err != nil {
		return meta{}, err
	} else if !fi.IsDir() {
		return meta{}, errors.New("data is not a folder")
	}
	return w, nil
}

func decodeMeta(b []byte) (meta, error) {
	var w meta
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return meta{}, fmt.Errorf("decode %s: %w", metaFile, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return meta{}, fmt.Errorf("decode %s: something follows the object", metaFile)
	}
	if w.Version != metaVersion {
		return meta{}, fmt.Errorf("%s is of version %d, this build reads %d", metaFile, w.Version, metaVersion)
	}
	if !namePattern.MatchString(w.Name) {
		return meta{}, fmt.Errorf("%s: name %q does not match %s", metaFile, w.Name, namePattern)
	}
	return w, nil
}

// writeMeta writes into a folder that nobody else knows yet.
func writeMeta(dir string, w meta) error {
	b, err := json.Marshal(w)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, metaFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Sync(), f.Close(), syncDir(dir))
}

// syncDir makes the names in dir outlive a power cut.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
