package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// State is the state of a sandbox.
type State string

// The states, in lifecycle order.
const (
	Creating State = "creating" // the intent is stored; a container may exist
	Warm     State = "warm"
	Leased   State = "leased"
	Stopping State = "stopping"
	Gone     State = "gone"
	Failed   State = "failed" // it never became warm
)

// transitions lists the allowed transitions. Any state may be stopped.
var transitions = map[State][]State{
	Creating: {Warm, Leased, Stopping, Failed, Gone},
	Warm:     {Leased, Stopping, Gone},
	Leased:   {Stopping, Gone},
	Stopping: {Stopping, Gone, Failed},
}

// Ended reports whether nothing of the sandbox is left.
func (s State) Ended() bool { return s == Gone || s == Failed }

// Lease describes what a caller leased.
type Lease struct {
	// Name is the caller's name for the sandbox, or "".
	Name string `json:"name,omitempty"`
	// Workspace is its directory name. Named is the caller's name for it, if different.
	Workspace string `json:"workspace,omitempty"`
	Named     string `json:"named,omitempty"`
	ReadOnly  bool   `json:"read_only,omitempty"`
	// Overlay reports that it writes to an overlay over the workspace.
	Overlay bool `json:"overlay,omitempty"`
	// CarryBytes is positive if the workspace cannot be mounted. Its files are then copied in and
	// out, up to this many bytes.
	CarryBytes int64 `json:"carry_bytes,omitempty"`
	// Claim reports that the workspace is a volume claim, which its sandbox has from its creation.
	Claim  bool              `json:"claim,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Class is the isolation class of its sandbox, or "" in rows that predate classes.
	Class string `json:"class,omitempty"`
	// OneShot leases serve one call and end with it.
	OneShot bool `json:"one_shot,omitempty"`
	// Private leases belong to a tool. Their caller cannot use them.
	Private bool `json:"private,omitempty"`
	// Network is the network of the profile that it was leased for, or "". Calls of other profiles
	// do not get it.
	Network string `json:"network,omitempty"`
	// Session is the caller's session that it belongs to.
	Session string `json:"session,omitempty"`
	// Attempt is the attempt of a job's command that it is for, or "".
	Attempt string `json:"attempt,omitempty"`
	// Native means that the engine's own queue starts its sandbox, outside of the pools and of
	// admission. Queued is set until that has happened.
	Native bool `json:"native,omitempty"`
	Queued bool `json:"queued,omitempty"`
	// Key is the idempotency key of its request.
	Key string `json:"key,omitempty"`
	// Egress is what it may reach; nil: nothing. Unbound means that its caller has no egress limit;
	// otherwise Profile is the caller's.
	Egress  *v1.Egress `json:"egress,omitempty"`
	Unbound bool       `json:"unbound,omitempty"`
	Profile string     `json:"profile,omitempty"`
	// Detail says why its sandbox was lost, if the driver reported that.
	Detail string `json:"detail,omitempty"`
	// Env is not stored: it may contain secrets, and the guest has it.
}

// Sandbox is a row.
type Sandbox struct {
	ID       string
	State    State
	Template string
	Runtime  string
	Image    string
	Build    string
	Memory   int64
	Caller   string
	Lease    Lease
	Warm     bool // leased from the warm pool
	Created  time.Time
	Expires  time.Time // zero unless leased
	Idle     time.Duration
	Used     time.Time
	Ended    time.Time
	Reason   string
}

// Waits reports whether the sandbox waits in the engine's own queue.
func (b Sandbox) Waits() bool { return b.State == Creating && b.Lease.Queued }

const columns = "id, state, template, runtime, image, build, memory, caller, lease, warm, created, expires, idle, " +
	"used, ended, reason"

// States returns the number of living sandboxes in each state. It reads the index of states only.
func (s *Store) States(ctx context.Context) (map[State]int, error) {
	out := map[State]int{}
	for _, state := range []State{Creating, Warm, Leased, Stopping} {
		var n int
		err := s.db.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes WHERE state = ?", state).Scan(&n)
		if err != nil {
			return nil, wrap("count sandboxes", err)
		}
		out[state] = n
	}
	return out, nil
}

// Insert records the intent to create a sandbox, before the driver is called.
func (s *Store) Insert(ctx context.Context, b Sandbox) error {
	defer s.wrote(OpInsertSandbox, time.Now())
	lease, err := json.Marshal(b.Lease)
	if err != nil {
		return err
	}
	_, err = exec(ctx, s.db, "INSERT INTO sandboxes ("+columns+") VALUES (?"+strings.Repeat(", ?", 15)+")",
		b.ID, b.State, b.Template, b.Runtime, b.Image, b.Build, b.Memory, b.Caller, string(lease), b.Warm,
		stamp(b.Created), stamp(b.Expires), int64(b.Idle), stamp(b.Used), stamp(b.Ended), b.Reason)
	return wrap("record sandbox "+b.ID, err)
}

// Update changes a row and enforces the allowed transitions. change receives the current row. If it
// returns an error, the row stays unchanged.
func (s *Store) Update(ctx context.Context, id string, change func(*Sandbox) error) (Sandbox, error) {
	defer s.wrote(OpUpdateSandbox, time.Now())
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return Sandbox{}, wrap("change sandbox "+id, err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	b, err := scan(tx.QueryRowContext(ctx, "SELECT "+columns+" FROM sandboxes WHERE id = ?", id))
	if err != nil {
		return Sandbox{}, missing("sandbox", id, err)
	}
	from := b.State
	if err := change(&b); err != nil {
		return Sandbox{}, err
	}
	if b.State != from && !slices.Contains(transitions[from], b.State) {
		return Sandbox{}, fmt.Errorf("sandbox %s is %s and cannot become %s: %w", id, from, b.State,
			errdefs.ErrFailedPrecondition)
	}
	lease, err := json.Marshal(b.Lease)
	if err != nil {
		return Sandbox{}, err
	}
	_, err = tx.ExecContext(ctx,
		"UPDATE sandboxes SET state = ?, caller = ?, lease = ?, warm = ?, expires = ?, idle = ?, used = ?, ended = ?,"+
			" reason = ? WHERE id = ?",
		b.State, b.Caller, string(lease), b.Warm, stamp(b.Expires), int64(b.Idle), stamp(b.Used), stamp(b.Ended),
		b.Reason,
		id)
	if err == nil {
		err = tx.Commit()
	}
	return b, wrap("change sandbox "+id, err)
}

// Touch records the last use of many leases.
func (s *Store) Touch(ctx context.Context, used map[string]time.Time) error {
	return s.touch(ctx, "record use", "UPDATE sandboxes SET used = ? WHERE id = ?", used)
}

// touch runs an update with the time and the id of each use.
func (s *Store) touch(ctx context.Context, what, update string, used map[string]time.Time) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return wrap(what, err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	for id, at := range used {
		if _, err := tx.ExecContext(ctx, update, stamp(at), id); err != nil {
			return wrap(what, err)
		}
	}
	return wrap(what, tx.Commit())
}

// Sandbox returns one row, or an error of class NotFound.
func (s *Store) Sandbox(ctx context.Context, id string) (Sandbox, error) {
	b, err := scan(s.db.QueryRowContext(ctx, "SELECT "+columns+" FROM sandboxes WHERE id = ?", id))
	return b, missing("sandbox", id, err)
}

// Live returns all sandboxes that have not ended, oldest first.
func (s *Store) Live(ctx context.Context) ([]Sandbox, error) {
	return s.query(ctx, "WHERE state NOT IN ('gone', 'failed') ORDER BY created, id")
}

// Leases returns at most limit leases of the caller, newest first. With ended, it includes ended
// ones.
func (s *Store) Leases(ctx context.Context, caller string, ended bool, limit int) ([]Sandbox, error) {
	where := "WHERE caller = ? AND state IN ('leased', 'stopping')"
	if ended {
		where = "WHERE caller = ?"
	}
	return s.query(ctx, where+" ORDER BY created DESC, id DESC LIMIT ?", caller, limit)
}

// Forget deletes rows that ended before the given time with their shells, and idempotency keys
// answered before it. It returns the number of deleted sandboxes.
func (s *Store) Forget(ctx context.Context, before time.Time) (int64, error) {
	t := stamp(before)
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, wrap("forget", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	const old = "state IN ('gone', 'failed') AND ended < ?"
	if _, err := tx.ExecContext(ctx, "DELETE FROM shells WHERE sandbox IN (SELECT id FROM sandboxes WHERE "+old+")",
		t); err != nil {
		return 0, wrap("forget", err)
	}
	res, err := tx.ExecContext(ctx, "DELETE FROM sandboxes WHERE "+old, t)
	if err != nil {
		return 0, wrap("forget", err)
	}
	// Keep keys of running requests: they prevent a second run.
	if _, err := tx.ExecContext(ctx, "DELETE FROM keys WHERE done > 0 AND created < ?", t); err != nil {
		return 0, wrap("forget", err)
	}
	n, err := res.RowsAffected()
	if err == nil {
		err = tx.Commit()
	}
	return n, wrap("forget", err)
}

func (s *Store) query(ctx context.Context, where string, args ...any) ([]Sandbox, error) {
	return queryAll(ctx, s.db, "list sandboxes", scan, "SELECT "+columns+" FROM sandboxes "+where, args...)
}

func scan(row scanner) (Sandbox, error) {
	var b Sandbox
	var lease string
	var created, expires, idle, used, ended int64
	err := row.Scan(&b.ID, &b.State, &b.Template, &b.Runtime, &b.Image, &b.Build, &b.Memory, &b.Caller, &lease, &b.Warm,
		&created, &expires, &idle, &used, &ended, &b.Reason)
	if err != nil {
		return b, err
	}
	b.Created, b.Expires, b.Idle, b.Used, b.Ended = moment(created), moment(expires), time.Duration(idle), moment(used),
		moment(ended)
	return b, json.Unmarshal([]byte(lease), &b.Lease)
}

// Times are stored as nanoseconds, the zero time as 0.
func stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func moment(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, classify(err))
}
