package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
)

// StateFile is the name of the database in the state directory.
const StateFile = "state.db"

// examinePrefix starts the names of temporary directories in which databases are read.
const examinePrefix = ".state-"

// Condition is the condition of a state directory's database.
type Condition int

// The conditions.
const (
	New     Condition = iota // the state directory never had one
	Whole                    // the last used one
	Lost                     // it existed, but is missing or empty
	Older                    // some of its changes are missing
	Damaged                  // it cannot be read
	Foreign                  // it belongs to a different state directory
)

// Examined is the result of Examine.
type Examined struct {
	Condition Condition

	dir    string
	detail string // finding, for StateError
	file   ownerRecord
	known  bool // the owner file exists
	db     contents
}

// StateError reports a database that is not the last used one. It is of class FailedPrecondition.
type StateError struct {
	Condition Condition
	// Detail describes the finding.
	Detail string
	dir    string
}

// Error implements error.
func (e *StateError) Error() string {
	return fmt.Sprintf("state directory %s: %s: %s", e.dir, e.Detail, e.WayOut())
}

// Unwrap returns the errdefs class.
func (e *StateError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// WayOut describes what an operator can do.
func (e *StateError) WayOut() string {
	const (
		restore = "put back a copy of state.db and remove the old state.db-wal and state.db-shm, or a backup with " +
			"`orchestrator restore --replace FILE`, or "
		none = "start with `orchestrator serve --adopt-none`, which destroys the sandboxes and keeps the workspaces"
	)
	switch e.Condition {
	case Lost:
		return restore + none
	case Older:
		return "put back a newer copy, or start with `orchestrator serve --adopt-older`, which destroys the " +
			"sandboxes that this one does not know"
	default:
		return restore + "move state.db away and " + none
	}
}

// Examine inspects the database and the owner file in dir without changing them. The caller holds
// the directory's lock (see Lock).
func Examine(ctx context.Context, dir string) (*Examined, error) {
	if err := scratch.Sweep(dir, examinePrefix, nil); err != nil {
		return nil, err
	}
	x := &Examined{dir: dir}
	var err error
	if x.file, x.known, err = readOwner(dir); err != nil {
		return nil, err
	}
	x.db, err = readContents(ctx, dir)
	damage, damaged := errors.AsType[*damageError](err)
	if x.file.Sequence == 0 && x.db.found && x.file.Owner != x.db.owner {
		x.file, x.known = ownerRecord{}, false // it was written while the database was missing
	}
	switch {
	case damaged:
		x.Condition, x.detail = Damaged, damage.Error()
	case err != nil:
		return nil, err
	case !x.db.found && (!x.known || x.file.Sequence == 0):
		x.Condition = New
	case !x.db.found:
		x.Condition, x.detail = Lost, StateFile+" "+x.db.missing
	case x.known && x.file.Owner != x.db.owner:
		x.Condition = Foreign
		x.detail = fmt.Sprintf("state.db belongs to owner %s, and the state directory to %s", x.db.owner, x.file.Owner)
	case x.file.Sequence > x.db.sequence:
		x.Condition = Older
		x.detail = fmt.Sprintf("state.db is older than the one last used (sequence %d, last %d): it is an earlier "+
			"copy, or its write-ahead log state.db-wal was lost or damaged",
			x.db.sequence, x.file.Sequence)
	default:
		x.Condition = Whole
	}
	return x, nil
}

// Owner returns the owner id, or "" if it is unknown.
func (x *Examined) Owner() string { return cmp.Or(x.file.Owner, x.db.owner) }

// Problem returns a *StateError, or nil if the database is New or Whole.
func (x *Examined) Problem() error {
	if x.Condition == New || x.Condition == Whole {
		return nil
	}
	return &StateError{Condition: x.Condition, Detail: x.detail, dir: x.dir}
}

// Accept lets Open continue with a database that is Lost or Older. If no owner id is known, owner
// is used; "" generates one.
func (x *Examined) Accept(owner string) {
	if x.file.Owner == "" {
		x.file.Owner = owner
	}
	switch x.Condition {
	case Lost:
		x.Condition = New
	case Older:
		x.Condition = Whole
	default: // nothing to accept
	}
}

// Open opens or creates the database. It returns Problem's error unless that was accepted. It
// writes the owner file before the database, because the owner id is needed to find sandboxes if
// the database is lost.
func (x *Examined) Open(ctx context.Context) (*Store, error) {
	if err := x.Problem(); err != nil {
		return nil, err
	}
	owner := cmp.Or(x.Owner(), newOwner())
	if !x.known {
		x.file.Version, x.file.Owner = ownerVersion, owner
		if err := x.file.write(x.dir); err != nil {
			return nil, err
		}
	}
	if x.Condition == New {
		// SQLite would apply a log without its database to the new one.
		if err := removeDatabase(x.dir); err != nil {
			return nil, err
		}
	}
	failpoint.Hit("start.state.made")
	return openStore(ctx, x.dir, owner, x.file.Sequence)
}

// OpenState opens the database of a state directory. Unlike Open it returns a *StateError if the
// database is not the last used one.
func OpenState(ctx context.Context, dir string) (*Store, error) {
	x, err := Examine(ctx, dir)
	if err != nil {
		return nil, err
	}
	return x.Open(ctx)
}

// HasState reports whether a server has ever used dir.
func HasState(dir string) bool {
	for _, name := range []string{StateFile, OwnerFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

func removeDatabase(dir string) error {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Remove(filepath.Join(dir, StateFile+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make state.db: %w", err)
		}
	}
	return nil
}

// contents is what is read from a database before it is opened.
type contents struct {
	found    bool
	missing  string // reason, if not found
	owner    string
	sequence int64
}

// damageError reports why a database cannot be used.
type damageError struct{ error }

// readContents reads a database without changing it or its log. It reads a copy, because SQLite
// ignores a log with a bad header and removes it on close.
func readContents(ctx context.Context, dir string) (c contents, err error) {
	path := filepath.Join(dir, StateFile)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return contents{missing: "is missing"}, nil
	case err != nil:
		return c, fmt.Errorf("examine state.db: %w", err)
	case info.Size() == 0:
		return contents{missing: "is empty"}, nil
	}
	mode := "immutable=1"
	if filled(path+"-wal") || filled(path+"-journal") {
		temp, err := copyDatabase(dir)
		if err != nil {
			return c, err
		}
		defer func() { err = errors.Join(err, temp.Remove()) }()
		path, mode = filepath.Join(temp.Path, StateFile), "mode=rw"
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+mode)
	if err != nil {
		return c, fmt.Errorf("examine state.db: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	c, err = queryContents(ctx, db)
	if err != nil && ctx.Err() == nil && !errdefs.IsFailedPrecondition(err) {
		err = &damageError{fmt.Errorf("state.db is damaged: %w", err)}
	}
	return c, err
}

func queryContents(ctx context.Context, db *sql.DB) (c contents, err error) {
	var tables, version int
	if err := db.QueryRowContext(ctx,
		"SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'meta'").Scan(&tables); err != nil {
		return c, err
	}
	var whole string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&whole); err != nil {
		return c, err
	}
	if whole != "ok" {
		return c, errors.New(strings.ReplaceAll(whole, "\n", " "))
	}
	if tables == 0 {
		return contents{missing: "has no tables"}, nil
	}
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return c, err
	}
	if version > schemaVersion {
		return c, newerError(version)
	}
	err = db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = 'owner'").Scan(&c.owner)
	if errors.Is(err, sql.ErrNoRows) { // its creation was interrupted
		return contents{missing: "has no owner"}, nil
	}
	if err != nil {
		return c, err
	}
	c.found = true
	err = db.QueryRowContext(ctx, "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'sequence'").Scan(&c.sequence)
	if errors.Is(err, sql.ErrNoRows) { // written by a version without a sequence number
		err = nil
	}
	return c, err
}

func filled(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() > 0
}

// copyDatabase copies the database in dir and its log to a temporary directory.
func copyDatabase(dir string) (*scratch.Dir, error) {
	temp, err := scratch.Make(dir, examinePrefix)
	if err != nil {
		return nil, fmt.Errorf("examine state.db: %w", classify(err))
	}
	failpoint.Hit("start.state.copying")
	for _, suffix := range []string{"", "-wal", "-journal"} {
		if err := copyFile(filepath.Join(temp.Path, StateFile+suffix),
			filepath.Join(dir, StateFile+suffix)); err != nil {
			return nil, errors.Join(fmt.Errorf("examine state.db: %w", classify(err)), temp.Remove())
		}
	}
	failpoint.Hit("start.state.copied")
	return temp, nil
}

// copyFile copies a file. It ignores a missing file.
func copyFile(to, from string) error {
	src, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}
