package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// AuditFiles reads the parts of an audit log in a directory: files of rows, each with a seal except
// the last. It does not interpret rows or seals. Its methods may be called concurrently, and while
// an AuditDB writes the log.
type AuditFiles struct{ dir string }

// OpenAuditFiles returns a reader for the log in dir. It keeps no file open.
func OpenAuditFiles(dir string) AuditFiles { return AuditFiles{dir} }

// AuditPart is a part of the log. Numbers start at 1.
type AuditPart struct {
	Number int
	// Present reports that its file exists. Bytes is the size of the file.
	Present bool
	Bytes   int64
	// Seal is the argument of Rotate or Remove. nil: the part has no seal.
	Seal []byte
}

// AuditFile is the file name of the first part. Later parts are "audit-000002.db" and so on.
const AuditFile = "audit.db"

// AuditPartFile returns the file name of a part.
func AuditPartFile(number int) string {
	if number == 1 {
		return AuditFile
	}
	return fmt.Sprintf("audit-%06d.db", number)
}

// AuditSealFile returns the file name of a part's seal.
func AuditSealFile(number int) string { return fmt.Sprintf("audit-%06d.seal", number) }

// auditName parses a file name of the log. It rejects SQLite's additional files.
func auditName(name string) (number int, seal, ok bool) {
	if name == AuditFile {
		return 1, false, true
	}
	digits, found := strings.CutPrefix(name, "audit-")
	digits, ext, _ := strings.Cut(digits, ".")
	n, err := strconv.Atoi(digits)
	if !found || err != nil || n < 1 || name != AuditPartFile(n) && name != AuditSealFile(n) {
		return 0, false, false
	}
	return n, ext == "seal", true
}

// maxSeal limits how much of a seal file is read, in bytes.
const maxSeal = 4 << 10

// Parts lists the parts from the first to the last that has a file or a seal.
func (a AuditFiles) Parts(context.Context) ([]AuditPart, error) {
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return nil, fmt.Errorf("list the parts of the audit log: %w", err)
	}
	var parts []AuditPart
	for _, e := range entries {
		n, seal, ok := auditName(e.Name())
		if !ok {
			continue
		}
		for len(parts) < n {
			if n > len(parts)+maxMissing {
				return nil, fmt.Errorf("list the parts of the audit log: the number of %s is too high: remove the file",
					e.Name())
			}
			parts = append(parts, AuditPart{Number: len(parts) + 1})
		}
		p := &parts[n-1]
		if seal {
			p.Seal, err = readSeal(filepath.Join(a.dir, e.Name()))
		} else if info, statErr := e.Info(); statErr == nil {
			p.Present, p.Bytes = true, info.Size()
		} else if !errors.Is(statErr, fs.ErrNotExist) {
			err = statErr
		}
		if err != nil {
			return nil, fmt.Errorf("list the parts of the audit log: %w", err)
		}
	}
	return parts, nil
}

// maxMissing limits how many consecutive parts may be missing, so that a file name alone cannot
// cost much memory.
const maxMissing = 100_000

func readSeal(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSeal {
		return []byte{}, nil // not a valid seal
	}
	return os.ReadFile(path)
}

// ScanPart is AuditDB.Scan for one part. Without a file, the error is fs.ErrNotExist.
func (a AuditFiles) ScanPart(ctx context.Context, number int, filter AuditFilter, f func(AuditRow) error) error {
	p, err := openPartToRead(a.dir, number)
	if err != nil {
		return err
	}
	defer p.closeHandles() //nolint:errcheck // nothing was written
	return p.scan(ctx, filter, f)
}

// IsEmpty reports whether a part has a file but no rows. A part that a killed process left
// incomplete is empty.
func (a AuditFiles) IsEmpty(ctx context.Context, number int) bool {
	p, err := openPartToRead(a.dir, number)
	if err != nil {
		return false
	}
	defer p.closeHandles() //nolint:errcheck // nothing was written
	row, err := p.last(ctx)
	if err != nil {
		return strings.Contains(err.Error(), "no such table: records")
	}
	return row.Seq == 0
}
