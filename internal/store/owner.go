package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// OwnerFile is the name of the file in the state directory that stores the owner id. It is separate
// from state.db, so that the sandboxes of a lost database can be found.
const OwnerFile = "owner.json"

const (
	ownerVersion  = 1
	maxOwnerBytes = 4 << 10
)

// ownerRecord is the content of OwnerFile.
type ownerRecord struct {
	Version int    `json:"version"`
	Owner   string `json:"owner"`
	// Sequence is never above that of state.db: a database with a lower one is not the last used
	// one. 0: no database was complete yet, and one that is put back decides the owner.
	Sequence int64 `json:"sequence"`
}

func newOwner() string { return "o" + strings.ReplaceAll(uuid.NewString(), "-", "")[:15] }

// readOwner reads the owner file in dir. found is false if it does not exist.
func readOwner(dir string) (r ownerRecord, found bool, err error) {
	path := filepath.Join(dir, OwnerFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("owner of the state directory: %w", err)
	}
	if len(text) > maxOwnerBytes {
		text = nil // not a valid owner file
	}
	if err := json.Unmarshal(text, &r); err != nil || !runtime.ValidID(r.Owner) || r.Sequence < 0 {
		return ownerRecord{}, false,
			fmt.Errorf("read %s: the file is damaged: remove it, and the next start writes it again from state.db: %w",
				path, errdefs.ErrFailedPrecondition)
	}
	if r.Version != ownerVersion {
		return ownerRecord{}, false, fmt.Errorf("read %s: version %d, want %d: use the newer program: %w",
			path, r.Version, ownerVersion, errdefs.ErrFailedPrecondition)
	}
	return r, true, nil
}

// EnsureOwner returns the owner id of a state directory, and creates one for a new directory. The
// caller does not hold the directory's lock: EnsureOwner takes it for a moment until a database was
// complete.
func EnsureOwner(ctx context.Context, dir string) (string, error) {
	r, found, err := readOwner(dir)
	if err != nil || r.Sequence > 0 {
		return r.Owner, err
	}
	lock, err := LockDir(dir)
	switch {
	case found && errdefs.IsUnavailable(err): // a process that starts has checked the owner
		return r.Owner, nil
	case err != nil:
		return "", err
	}
	owner, err := makeOwner(ctx, dir)
	return owner, errors.Join(err, lock.Unlock())
}

// makeOwner writes the owner file unless there is one. The caller holds the directory's lock.
func makeOwner(ctx context.Context, dir string) (string, error) {
	x, err := Examine(ctx, dir)
	switch {
	case err != nil:
		return "", err
	case x.known:
		return x.Owner(), nil
	case x.Condition == Damaged: // its owner is unknown
		return "", x.Problem()
	}
	r := ownerRecord{Version: ownerVersion, Owner: cmp.Or(x.Owner(), newOwner())}
	return r.Owner, r.write(dir)
}

// write durably replaces the owner file in dir.
func (r ownerRecord) write(dir string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, OwnerFile)
	err = hostfile.ReplaceSynced(path, append(text, '\n'), 0o600, func() { failpoint.Hit("start.owner.written") })
	if err != nil {
		return fmt.Errorf("write %s: %w", path, classify(err))
	}
	return nil
}
