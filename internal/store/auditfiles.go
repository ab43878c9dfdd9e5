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

// AuditFiles reads the parts of an audit log in a directory: files of rows, each
// but the last with a seal. It knows nothing of what rows and seals mean. Its
// methods may be called concurrently, also while an AuditDB writes the log.
type AuditFiles struct{ dir string }

// OpenAuditFiles reads the log in dir, which nobody writes. It holds nothing open.
func OpenAuditFiles(dir string) AuditFiles { return AuditFiles{dir} }

// AuditPart is a part of the log. Parts have numbers from 1.
type AuditPart struct {
	Number int
	// Present says that its file exists; Bytes is how long that is.
	Present bool
	Bytes   int64
	// Seal is what Rotate or Remove was given; nil: the part has none.
	Seal []byte
}

// AuditFile is the file of the first part. Later ones are "audit-000002.db" and
// so on.
const AuditFile = "audit.db"

// AuditPartFile is the name of a part's file.
func AuditPartFile(number int) string {
	if number == 1 {
		return AuditFile
	}
	return fmt.Sprintf("audit-%06d.db", number)
}

// AuditSealFile is the name of the file with a part's seal.
func AuditSealFile(number int) string { return fmt.Sprintf("audit-%06d.seal", number) }

// auditName reads the name of a file of the log, without what SQLite adds to it.
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

// maxSeal bounds what is read of a seal's file.
const maxSeal = 4 << 10

// Parts lists the parts from the first one to the last of which there is a file
// or a seal.
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
				return nil, fmt.Errorf("list the parts of the audit log: %s is far from the others: remove it", e.Name())
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

// maxMissing bounds how many parts in a row may be missing: a name alone must not
// take memory.
const maxMissing = 100_000

func readSeal(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSeal {
		return []byte{}, nil // no seal of ours
	}
	return os.ReadFile(path)
}

// ScanPart is AuditDB.Scan for one part. A part without a file is
// fs.ErrNotExist.
func (a AuditFiles) ScanPart(ctx context.Context, number int, filter AuditFilter, f func(AuditRow) error) error {
	p, err := openPartToRead(a.dir, number)
	if err != nil {
		return err
	}
	defer p.shut() //nolint:errcheck // nothing was written
	return p.scan(ctx, filter, f)
}

// IsEmpty reports whether a part has a file and no row. One that a killed process
// did not make to the end is empty.
func (a AuditFiles) IsEmpty(ctx context.Context, number int) bool {
	p, err := openPartToRead(a.dir, number)
	if err != nil {
		return false
	}
	defer p.shut() //nolint:errcheck // nothing was written
	row, err := p.last(ctx)
	if err != nil {
		return strings.Contains(err.Error(), "no such table: records")
	}
	return row.Seq == 0
}
