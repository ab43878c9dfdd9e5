package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
)

// backupTries bounds how often CopyTo copies the audit log because a part was sealed meanwhile.
const backupTries = 5

// CopyTo copies the databases of the state directory dir, and the seals of the audit log, to the
// directory to. It returns the names of the files. Another process may use the databases: each copy
// is what one transaction sees. owner.json is written to match the copy of state.db.
func CopyTo(ctx context.Context, dir, to string) ([]string, error) {
	if err := copyLive(ctx, filepath.Join(dir, StateFile), filepath.Join(to, StateFile)); err != nil {
		return nil, fmt.Errorf("copy state.db: %w", err)
	}
	found, err := readContents(ctx, to)
	switch {
	case err != nil:
		return nil, err
	case !found.found:
		return nil, fmt.Errorf("copy state.db: it %s: %w", found.missing, errdefs.ErrFailedPrecondition)
	}
	if err := (ownerRecord{Version: ownerVersion, Owner: found.owner, Sequence: found.sequence}).write(to); err != nil {
		return nil, err
	}
	audit, err := copyAudit(ctx, dir, to)
	return append([]string{StateFile, OwnerFile}, audit...), err
}

// copyLive copies a database that another process may write.
func copyLive(ctx context.Context, from, to string) error {
	if _, err := os.Stat(from); err != nil {
		return err
	}
	// Read-only: a writer that closes last would fold the log and remove it, also a damaged one.
	q := url.Values{"_pragma": {"busy_timeout(5000)"}, "mode": {"ro"}}
	if _, err := os.Stat(from + "-wal"); errors.Is(err, fs.ErrNotExist) {
		q.Set("immutable", "1") // no process has it open, and SQLite could not make the log
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: from}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	if err := errors.Join(classify(err), db.Close()); err != nil {
		return err
	}
	return os.Chmod(to, 0o600)
}

// copyAudit copies the parts of the audit log and their seals. It starts again if a part was sealed
// or removed meanwhile.
func copyAudit(ctx context.Context, dir, to string) ([]string, error) {
	files := OpenAuditFiles(dir)
	for range backupTries {
		before, err := files.Parts(ctx)
		if err != nil {
			return nil, err
		}
		names, err := copyParts(ctx, before, dir, to)
		if err != nil {
			return nil, fmt.Errorf("copy the audit log: %w", err)
		}
		after, err := files.Parts(ctx)
		if err != nil {
			return nil, err
		}
		if slices.EqualFunc(before, after, func(a, b AuditPart) bool {
			return a.Present == b.Present && string(a.Seal) == string(b.Seal)
		}) {
			return names, nil
		}
		for _, name := range names {
			if err := os.Remove(filepath.Join(to, name)); err != nil {
				return nil, err
			}
		}
	}
	return nil, fmt.Errorf("copy the audit log: its parts change too often: try again: %w", errdefs.ErrUnavailable)
}

func copyParts(ctx context.Context, parts []AuditPart, dir, to string) ([]string, error) {
	var names []string
	for _, p := range parts {
		if p.Present {
			name := AuditPartFile(p.Number)
			if err := copyLive(ctx, filepath.Join(dir, name), filepath.Join(to, name)); err != nil {
				return names, err
			}
			names = append(names, name)
		}
		if p.Seal != nil {
			name := AuditSealFile(p.Number)
			if err := os.WriteFile(filepath.Join(to, name), p.Seal, 0o600); err != nil {
				return names, err
			}
			names = append(names, name)
		}
	}
	return names, nil
}

// IsBackupFile reports whether CopyTo may return a file name.
func IsBackupFile(name string) bool {
	_, _, audit := auditName(name)
	return audit || name == StateFile || name == OwnerFile
}

// CheckCopy returns an error unless this program can open the databases in dir, which CopyTo made.
func CheckCopy(ctx context.Context, dir string) error {
	x, err := Examine(ctx, dir)
	if err != nil {
		return err
	}
	if x.Condition == New || x.Condition == Lost {
		return fmt.Errorf("it has no state.db: %w", errdefs.ErrInvalidArgument)
	}
	if err := x.Problem(); err != nil {
		return err
	}
	parts, err := OpenAuditFiles(dir).Parts(ctx)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if !p.Present {
			continue
		}
		if err := checkAuditVersion(ctx, dir, p.Number); err != nil {
			return fmt.Errorf("%s: %w", AuditPartFile(p.Number), err)
		}
	}
	return nil
}

func checkAuditVersion(ctx context.Context, dir string, number int) error {
	p, err := openPartToRead(dir, number)
	if err != nil {
		return err
	}
	defer p.closeHandles() //nolint:errcheck // nothing was written
	var found int
	if err := p.read.QueryRowContext(ctx, "PRAGMA user_version").Scan(&found); err != nil {
		return classify(err)
	}
	if found > auditVersion {
		return newerAuditError(found)
	}
	return nil
}
