package audit

import (
	"context"
	"crypto/hmac"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Store stores the rows; *store.AuditDB implements it. Only one goroutine at a time calls Append,
// Rotate and Remove.
type Store interface {
	partReader
	Append(ctx context.Context, rows []store.AuditRow) error
	Rotate(ctx context.Context, seal []byte) error
	Remove(ctx context.Context, part int, seal []byte) error
	Size(ctx context.Context) (int64, error)
	Last(ctx context.Context) (store.AuditRow, error)
	Running(ctx context.Context) ([]store.AuditRow, error)
	Spent(ctx context.Context, day string) (map[string]int64, error)
	Scan(ctx context.Context, f store.AuditFilter, row func(store.AuditRow) error) error
}

// partReader reads the parts of a log. *store.AuditDB and store.AuditFiles implement it.
type partReader interface {
	Parts(ctx context.Context) ([]store.AuditPart, error)
	ScanPart(ctx context.Context, part int, f store.AuditFilter, row func(store.AuditRow) error) error
	IsEmpty(ctx context.Context, part int) bool
}

// Options configures a log. Store and Head are required.
type Options struct {
	Store Store
	// Redactor removes secrets from records. If nil, the log uses one with the built-in patterns
	// and no values. Open sets its key, so do not use it earlier.
	Redactor *Redactor
	// Head is the path of the head file. Key is the path of the key file (default: "audit.key"
	// beside it).
	Head, Key string
	// Retention configures when parts of the log end and when they are deleted.
	Retention Retention
	// CallerDailyBytes limits what may be recorded for one caller in a day (UTC) before Admit
	// refuses it. 0 means unlimited.
	CallerDailyBytes int64
	// OnAppend, if set, is called after each append to the store, with its duration. It must not
	// block.
	OnAppend func(took time.Duration)
	// Now returns the current time. If nil, time.Now is used.
	Now func() time.Time
	Log *slog.Logger
}

// Limits of the write queue.
const (
	queueLength = 1024
	batchLength = 512
	// closeWithin is how long a closing record waits to share a commit. A call that begins right
	// after it then need not wait for that commit.
	closeWithin = 5 * time.Millisecond
	// retryAfter is the delay before closing records that failed to be written are retried.
	retryAfter = time.Second
)

// Ending and error that Open records for calls that were never closed.
const (
	LostEnding = "sandbox_lost"
	LostError  = "the orchestrator ended while it ran"
)

// HeadAction is the action of the record that Open writes if the log does not continue from the
// head file. The record's ending is the problem's kind, which Verify reports from then on.
const HeadAction = "audit.head"

// Log is an open audit log. All methods may be called concurrently. It starts two goroutines: one
// writes records, the other the head file. Close waits for both.
type Log struct {
	store  Store
	redact *Redactor
	log    *slog.Logger
	key    []byte
	head   headFile
	now    func() time.Time
	shares shares
	// onAppend may be nil.
	onAppend func(took time.Duration)

	refusals refusals

	retention Retention
	part      part // owned by the writer after Open

	queue       chan *queueItem
	stop        chan struct{} // closed by Close: nothing more is queued
	stopped     chan struct{}
	headUpdates chan head // buffers only the newest head
	headsDone   chan struct{}

	closing sync.RWMutex // read-locked while queueing
	closed  bool
	failed  error // error of the last write attempt in Close

	mu       sync.Mutex
	last     head          // last written head
	appended chan struct{} // closed with the next written record; nil if nothing waits for one

	mac           hash.Hash    // owned by the writer
	pendingCloses []*queueItem // owned by the writer: closing records for the next batch
}

// queueItem is a record that waits to be written.
type queueItem struct {
	body          []byte // the record from its kind on
	opens, closes string
	state         atomic.Int32
	done          chan error // nil: no caller waits, but the record must not be lost
	spender, day  string     // caller and day that it is charged to; "": none
}

// cost returns the number of bytes that the record is charged with.
func (it *queueItem) cost() int64 { return int64(len(it.body)) + recordCost }

// States of a queueItem: the writer takes it, or its waiting caller abandons it.
const (
	itemQueued int32 = iota
	itemTaken
	itemAbandoned
)

// Open opens the log and continues after the last record. It closes the calls that a crash left
// open and compares the last record with the head file.
//
// A mismatch is recorded and logged, but is not an error. Otherwise anyone who can write the head
// file could stop the service.
func Open(ctx context.Context, o Options) (*Log, error) {
	if o.Store == nil || o.Head == "" {
		return nil, fmt.Errorf("audit: Store and Head are required: %w", errdefs.ErrInvalidArgument)
	}
	if o.Key == "" {
		o.Key = filepath.Join(filepath.Dir(o.Head), KeyFile)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Redactor == nil {
		o.Redactor = NewRedactor()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	key, fresh, err := loadKey(o.Key)
	if err != nil {
		return nil, err
	}
	o.Redactor.useKey(key)
	l := &Log{
		store: o.Store, redact: o.Redactor, log: o.Log, key: key, head: headFile{path: o.Head, key: key},
		queue: make(chan *queueItem, queueLength), stop: make(chan struct{}), stopped: make(chan struct{}),
		headUpdates: make(chan head, 1), headsDone: make(chan struct{}),
		mac: newMAC(key), now: o.Now, shares: shares{limit: o.CallerDailyBytes, now: o.Now}, retention: o.Retention,
		onAppend: o.OnAppend, refusals: refusals{kinds: map[refusalKind]*refused{}},
	}
	last, err := l.openParts(ctx)
	if err == nil {
		err = l.shares.load(ctx, o.Store)
	}
	if err != nil {
		return nil, err
	}
	l.last = last
	mismatch := l.compareHead(last, fresh)
	if mismatch == nil {
		l.writeHead(last) // before anybody can verify the log
	}
	go l.runWriter(context.WithoutCancel(ctx))
	go l.writeHeads()
	if err := l.recordRecovery(ctx, mismatch); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// compareHead returns how the head file differs from the last record, or nil if it does not.
func (l *Log) compareHead(last head, fresh bool) *Problem {
	found := func(kind ProblemKind, format string, args ...any) *Problem {
		return &Problem{last.Seq + 1, kind, fmt.Sprintf(format, args...)}
	}
	h, err := l.head.read()
	switch {
	case fresh && last.Seq == 0:
		return nil // a new log
	case fresh:
		return found(Unreadable, "the key file is missing: the %d records before this one can no longer be verified",
			last.Seq)
	case err != nil:
		return found(Unreadable, "the head file cannot be used: %v", err)
	case h.Seq > last.Seq:
		return found(Cut, "the log ends at record %d, but the head file names record %d: it was truncated", last.Seq,
			h.Seq)
	case h.Seq == last.Seq && !hmac.Equal(h.Hash, last.Hash):
		return found(Changed, "record %d does not match the head file", last.Seq)
	}
	return nil // older: the process died between writing a record and its head
}

// recordRecovery records a head mismatch and closes the calls that a crash left open.
func (l *Log) recordRecovery(ctx context.Context, mismatch *Problem) error {
	running, err := l.store.Running(ctx)
	if err != nil {
		return err
	}
	if mismatch != nil {
		l.log.Error("audit log does not match its head file", "problem", mismatch.Message)
		if err := l.Event(ctx, Record{Action: HeadAction, Ending: string(mismatch.Kind),
			Error: mismatch.Message}); err != nil {
			return err
		}
	}
	for _, row := range running {
		r, err := decode(row.Record)
		if err != nil || r.Call != row.Opens {
			// The record was tampered with, but the call must still be closed.
			r = Record{Call: row.Opens, Action: "unknown"}
		}
		e := &Entry{log: l, open: r}
		if err := e.Close(ctx, Record{Ending: LostEnding, Error: LostError}); err != nil {
			return err
		}
	}
	if len(running) > 0 {
		l.log.Warn("closed calls that a previous process left open", "calls", len(running))
	}
	return l.Flush(ctx)
}

// Start records that a call is about to run, as a record of kind KindOpen. It does not wait for the
// record to be written. The call must not run before Opened returns nil.
func (l *Log) Start(ctx context.Context, r Record) (*Entry, error) {
	if r.Call == "" {
		return nil, fmt.Errorf("audit: call has no id: %w", errdefs.ErrInvalidArgument)
	}
	r.Kind = KindOpen
	r = l.sanitize(r)
	body, err := encode(r)
	if err != nil {
		return nil, fmt.Errorf("record the call: %w", err)
	}
	it := l.charge(r, &queueItem{body: body, done: make(chan error, 1), opens: r.Call})
	if err := l.enqueue(ctx, it); err != nil {
		return nil, fmt.Errorf("record the call: %w", err)
	}
	r.Input, r.InputBytes, r.InputHash = nil, 0, "" // save memory: the entry lives as long as the call
	return &Entry{log: l, open: r, opening: it}, nil
}

// Opened returns nil when the record that opens the call is durable, or the reason why it is not.
// If ctx ends before the record is written, nothing is recorded.
func (e *Entry) Opened(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.opened(ctx)
}

func (e *Entry) opened(ctx context.Context) error {
	if e.opening != nil {
		it := e.opening
		e.opening = nil
		if err := e.log.awaitWrite(ctx, it); err != nil {
			e.failed = fmt.Errorf("record the call: %w", err)
		}
	}
	return e.failed
}

// Event records something other than a call. It returns when the record is durable.
func (l *Log) Event(ctx context.Context, r Record) error {
	r.Kind = KindEvent
	if err := l.commit(ctx, l.sanitize(r)); err != nil {
		return fmt.Errorf("record %s: %w", r.Action, err)
	}
	return nil
}

// Events records several events in order, in as few commits as possible. It returns how many
// records are durable, and why the others are not.
func (l *Log) Events(ctx context.Context, records []Record) (written int, err error) {
	queued := make([]*queueItem, 0, len(records))
	for _, r := range records {
		body, encodeErr := encode(l.sanitize(r))
		if err = encodeErr; err != nil {
			break
		}
		it := l.charge(r, &queueItem{body: body, done: make(chan error, 1)})
		if err = l.enqueue(ctx, it); err != nil {
			break
		}
		queued = append(queued, it)
	}
	for _, it := range queued {
		if failed := l.awaitWrite(ctx, it); failed != nil {
			err = failed
			continue
		}
		written++
	}
	if err != nil {
		return written, fmt.Errorf("record %d events: %w", len(records), err)
	}
	return written, nil
}

// Entry is a running call. Its methods may be called concurrently.
type Entry struct {
	log  *Log
	open Record // without its input

	mu      sync.Mutex
	opening *queueItem // nil after the first Opened
	failed  error      // why the call is not recorded
	done    bool
}

// Close records how the call ended. Fields that outcome leaves empty come from the open record,
// except the input: set it if a different input ran.
//
// Close waits for the open record. It does not wait for its own record unless the queue is full;
// records are written in order. Only the first Close that returns nil counts.
func (e *Entry) Close(ctx context.Context, outcome Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done {
		return nil
	}
	if err := e.opened(ctx); err != nil {
		return err
	}
	r := e.log.sanitize(closeRecord(e.open, outcome))
	body, err := encode(r)
	if err != nil {
		return err
	}
	if err := e.log.enqueue(ctx, e.log.charge(r, &queueItem{body: body, closes: r.Call})); err != nil {
		return fmt.Errorf("record the end of call %s: %w", r.Call, err)
	}
	e.done = true
	return nil
}

// commit queues a record and waits until it is written.
func (l *Log) commit(ctx context.Context, r Record) error {
	body, err := encode(r)
	if err != nil {
		return err
	}
	return l.wait(ctx, l.charge(r, &queueItem{body: body, done: make(chan error, 1)}))
}

// charge charges a record to its caller and returns the item.
func (l *Log) charge(r Record, it *queueItem) *queueItem {
	if r.Caller != "" && !r.Uncharged {
		it.spender = r.Caller
		it.day = l.shares.charge(it.spender, it.cost())
	}
	return it
}

func (l *Log) wait(ctx context.Context, it *queueItem) error {
	if err := l.enqueue(ctx, it); err != nil {
		return err
	}
	return l.awaitWrite(ctx, it)
}

// awaitWrite waits until a queued item is written.
func (l *Log) awaitWrite(ctx context.Context, it *queueItem) error {
	select {
	case err := <-it.done:
		return err
	case <-ctx.Done():
		if it.state.CompareAndSwap(itemQueued, itemAbandoned) {
			l.refund(it)
			return context.Cause(ctx)
		}
		return <-it.done // the write is under way and ends soon
	}
}

// refund reverses the charge for a record that was not written.
func (l *Log) refund(it *queueItem) {
	if it.spender != "" {
		l.shares.refund(it.day, it.spender, it.cost())
	}
}

func (l *Log) enqueue(ctx context.Context, it *queueItem) (err error) {
	defer func() {
		if err != nil {
			l.refund(it)
		}
	}()
	l.closing.RLock()
	defer l.closing.RUnlock()
	if l.closed {
		return fmt.Errorf("the audit log is closed: %w", errdefs.ErrUnavailable)
	}
	select {
	case l.queue <- it:
		return nil
	default:
	}
	select {
	case l.queue <- it:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Flush returns when everything queued before it is written, and the head file too. It returns an
// error if that fails.
func (l *Log) Flush(ctx context.Context) error {
	if err := l.wait(ctx, &queueItem{done: make(chan error, 1)}); err != nil {
		return err
	}
	return l.head.wait(ctx, l.written().Seq)
}

// Head returns "SEQ:HASH" of the last written record. If an operator keeps it elsewhere, Verify can
// detect a log that was truncated or recreated.
func (l *Log) Head(context.Context) string { return l.written().String() }

// Queued returns the number of records that wait to be written.
func (l *Log) Queued() int { return len(l.queue) }

// Seq returns the sequence number of the last written record.
func (l *Log) Seq() int64 { return l.written().Seq }

// Appended returns the sequence number of the last written record, and a channel that is closed
// when there are later ones.
func (l *Log) Appended() (last int64, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.appended == nil {
		l.appended = make(chan struct{})
	}
	return l.last.Seq, l.appended
}

func (l *Log) written() head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Close writes what is queued and closes the log. It returns an error if a record could not be
// written. The caller closes the store.
func (l *Log) Close() error {
	l.closing.Lock()
	first := !l.closed
	l.closed = true
	l.closing.Unlock()
	if first {
		close(l.stop)
	}
	<-l.stopped
	<-l.headsDone
	return l.failed
}

// String returns "SEQ:HASH", the form that operators keep.
func (h head) String() string { return fmt.Sprintf("%d:%s", h.Seq, hex.EncodeToString(h.Hash)) }
