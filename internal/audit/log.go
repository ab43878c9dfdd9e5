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

// Store keeps the rows: *store.AuditDB. Append, Rotate and Remove are called by
// one goroutine at a time.
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

// partReader reads the parts of a log: *store.AuditDB or store.AuditFiles.
type partReader interface {
	Parts(ctx context.Context) ([]store.AuditPart, error)
	ScanPart(ctx context.Context, part int, f store.AuditFilter, row func(store.AuditRow) error) error
	IsEmpty(ctx context.Context, part int) bool
}

// Options of a log. Store and Head are needed.
type Options struct {
	Store Store
	// Redactor takes secrets out of what is recorded; nil knows the patterns
	// and no values. Open gives it a key, so nothing else may use it before.
	Redactor *Redactor
	// Head is the path of the head file. Key is that of the key file, by
	// default "audit.key" beside it.
	Head, Key string
	// Retention ends parts of the log and deletes old ones.
	Retention Retention
	// CallerDailyBytes is how much may be recorded of one caller in a day (UTC)
	// before Admit refuses it; 0 is unlimited.
	CallerDailyBytes int64
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Bounds of what waits to be written.
const (
	queueLength = 1024
	batchLength = 512
	// closeWithin is how long a closing waits for something to be written
	// with. A call that begins right behind it does not wait for its commit.
	closeWithin = 5 * time.Millisecond
	// retryAfter is when closings that could not be written are tried again.
	retryAfter = time.Second
)

// What Open says of calls that nobody closed.
const (
	LostEnding = "sandbox_lost"
	LostError  = "the orchestrator ended while it ran"
)

// HeadAction is the action of the record that Open makes where the log does
// not go on from where the head file says it was. Its ending is the kind of the
// problem, which Verify tells from then on.
const HeadAction = "audit.head"

// Log is an open audit log. All methods may be called concurrently. It starts
// two goroutines, one that writes records and one that writes the head file;
// Close waits for both.
type Log struct {
	store  Store
	redact *Redactor
	log    *slog.Logger
	key    []byte
	head   headFile
	now    func() time.Time
	shares shares

	refusals refusals

	retention Retention
	part      part // the writer's, once Open is done

	queue   chan *item
	stop    chan struct{} // closed by Close: nothing is queued any more
	stopped chan struct{}
	heads   chan head // of length 1: the newest
	headed  chan struct{}

	closing sync.RWMutex // read-held while queueing
	closed  bool
	failed  error // what the last attempt to write at Close said

	mu   sync.Mutex
	last head // the last written

	mac  hash.Hash // the writer's
	kept []*item   // the writer's: closings to be written with what comes next
}

// item is what waits to be written.
type item struct {
	body          []byte // the record from its kind on
	opens, closes string
	state         atomic.Int32
	done          chan error // nil: nobody waits, and it must not be lost
	spender, day  string     // whose share it is charged to; "": nobody's
}

// cost is what the record is charged with.
func (it *item) cost() int64 { return int64(len(it.body)) + recordCost }

// The states of an item: the writer takes it, or who waits gives it up.
const (
	itemWaits int32 = iota
	itemTaken
	itemGivenUp
)

// Open opens the log: it goes on behind the last record, closes the calls
// that a crash left open, and compares with the head file. That they differ is
// reported, as a record and to Log, and no error: a log that refused to open
// could be ended by whoever can write the file.
func Open(ctx context.Context, o Options) (*Log, error) {
	if o.Store == nil || o.Head == "" {
		return nil, fmt.Errorf("audit: Store and Head are needed: %w", errdefs.ErrInvalidArgument)
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
		queue: make(chan *item, queueLength), stop: make(chan struct{}), stopped: make(chan struct{}),
		heads: make(chan head, 1), headed: make(chan struct{}),
		mac: newMAC(key), now: o.Now, shares: shares{limit: o.CallerDailyBytes, now: o.Now}, retention: o.Retention, refusals: refusals{kinds: map[refusalKind]*refused{}},
	}
	last, err := l.openParts(ctx)
	if err == nil {
		err = l.shares.load(ctx, o.Store)
	}
	if err != nil {
		return nil, err
	}
	l.last = last
	mismatch := l.compare(last, fresh)
	if mismatch == nil {
		l.announce(last) // so that the file is there from the first moment
	}
	go l.write()
	go l.writeHeads()
	if err := l.recover(ctx, mismatch); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// compare says in which way the head file does not fit the last record; nil: it
// does.
func (l *Log) compare(last head, fresh bool) *Problem {
	found := func(kind ProblemKind, format string, args ...any) *Problem {
		return &Problem{last.Seq + 1, kind, fmt.Sprintf(format, args...)}
	}
	h, err := l.head.read()
	switch {
	case fresh && last.Seq == 0:
		return nil // a new log
	case fresh:
		return found(Unreadable, "the key file is missing: the %d records before this one cannot be verified any more", last.Seq)
	case err != nil:
		return found(Unreadable, "the head file cannot be used: %v", err)
	case h.Seq > last.Seq:
		return found(Cut, "the log ends at record %d, and the head file says %d: it was cut", last.Seq, h.Seq)
	case h.Seq == last.Seq && !hmac.Equal(h.Hash, last.Hash):
		return found(Changed, "record %d is not the one that the head file knows", last.Seq)
	}
	return nil // older: the process died between a record and its head
}

// recover writes what the start found out.
func (l *Log) recover(ctx context.Context, mismatch *Problem) error {
	running, err := l.store.Running(ctx)
	if err != nil {
		return err
	}
	if mismatch != nil {
		l.log.Error("the audit log does not fit its head", "problem", mismatch.Message)
		if err := l.Event(ctx, Record{Action: HeadAction, Ending: string(mismatch.Kind), Error: mismatch.Message}); err != nil {
			return err
		}
	}
	for _, row := range running {
		r, err := decode(row.Record)
		if err != nil || r.Call != row.Opens {
			r = Record{Call: row.Opens, Action: "unknown"} // tampered with; it ends all the same
		}
		e := &Entry{log: l, open: r}
		if err := e.Close(ctx, Record{Ending: LostEnding, Error: LostError}); err != nil {
			return err
		}
	}
	if len(running) > 0 {
		l.log.Warn("calls ended with the orchestrator before this one", "calls", len(running))
	}
	return l.Flush(ctx)
}

// Begin records that a call is about to run, as a record of kind KindOpen, and
// returns once that outlives the process. Without it, nothing may run. If ctx
// ends before it is written, there is no record.
func (l *Log) Begin(ctx context.Context, r Record) (*Entry, error) {
	e, err := l.Start(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := e.Opened(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// Start is Begin without the wait: nothing may run before Opened has returned
// nil.
func (l *Log) Start(ctx context.Context, r Record) (*Entry, error) {
	if r.Call == "" {
		return nil, fmt.Errorf("audit: a call needs an id: %w", errdefs.ErrInvalidArgument)
	}
	r.Kind = KindOpen
	r = l.clean(r)
	body, err := encode(r)
	if err != nil {
		return nil, fmt.Errorf("record the call: %w", err)
	}
	it := l.charged(r, &item{body: body, done: make(chan error, 1), opens: r.Call})
	if err := l.enqueue(ctx, it); err != nil {
		return nil, fmt.Errorf("record the call: %w", err)
	}
	r.Input, r.InputBytes, r.InputHash = nil, 0, "" // the entry lives as long as the call
	return &Entry{log: l, open: r, opening: it}, nil
}

// Opened returns once the record that opens the call outlives the process, or
// says why it does not. If ctx ends before it is written, there is no record.
func (e *Entry) Opened(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.opened(ctx)
}

func (e *Entry) opened(ctx context.Context) error {
	if e.opening != nil {
		it := e.opening
		e.opening = nil
		if err := e.log.taken(ctx, it); err != nil {
			e.failed = fmt.Errorf("record the call: %w", err)
		}
	}
	return e.failed
}

// Event records something that is no call, and returns once that outlives the
// process.
func (l *Log) Event(ctx context.Context, r Record) error {
	r.Kind = KindEvent
	if err := l.commit(ctx, l.clean(r)); err != nil {
		return fmt.Errorf("record %s: %w", r.Action, err)
	}
	return nil
}

// Events records several things that are no calls, in order and in as few
// commits as can be. It returns how many outlive the process, and why the rest
// do not.
func (l *Log) Events(ctx context.Context, records []Record) (written int, err error) {
	queued := make([]*item, 0, len(records))
	for _, r := range records {
		body, encodeErr := encode(l.clean(r))
		if err = encodeErr; err != nil {
			break
		}
		it := l.charged(r, &item{body: body, done: make(chan error, 1)})
		if err = l.enqueue(ctx, it); err != nil {
			break
		}
		queued = append(queued, it)
	}
	for _, it := range queued {
		if failed := l.taken(ctx, it); failed != nil {
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

// Entry is a call under way. Its methods may be called concurrently.
type Entry struct {
	log  *Log
	open Record // without its input

	mu      sync.Mutex
	opening *item // until somebody waited for it
	failed  error // why the call is not recorded
	done    bool
}

// Close records how the call ended. What it is and who asked for it is taken
// from the open record where outcome leaves it empty, but for the input: outcome
// has one where it was another that ran. The record is written in order, and
// Close does not wait for it unless the queue is full; it waits for the one
// that opens the call. Only the first Close that returns nil counts.
func (e *Entry) Close(ctx context.Context, outcome Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done {
		return nil
	}
	if err := e.opened(ctx); err != nil {
		return err
	}
	r := e.log.clean(closing(e.open, outcome))
	body, err := encode(r)
	if err != nil {
		return err
	}
	if err := e.log.enqueue(ctx, e.log.charged(r, &item{body: body, closes: r.Call})); err != nil {
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
	return l.wait(ctx, l.charged(r, &item{body: body, done: make(chan error, 1)}))
}

// charged charges a record to its caller.
func (l *Log) charged(r Record, it *item) *item {
	if r.Caller != "" && !r.Uncharged {
		it.spender = r.Caller
		it.day = l.shares.charge(it.spender, it.cost())
	}
	return it
}

func (l *Log) wait(ctx context.Context, it *item) error {
	if err := l.enqueue(ctx, it); err != nil {
		return err
	}
	return l.taken(ctx, it)
}

// taken waits for what is queued.
func (l *Log) taken(ctx context.Context, it *item) error {
	select {
	case err := <-it.done:
		return err
	case <-ctx.Done():
		if it.state.CompareAndSwap(itemWaits, itemGivenUp) {
			l.refund(it)
			return context.Cause(ctx)
		}
		return <-it.done // it is being written: that is soon over
	}
}

// refund takes back what a record was charged with that is not written.
func (l *Log) refund(it *item) {
	if it.spender != "" {
		l.shares.refund(it.day, it.spender, it.cost())
	}
}

func (l *Log) enqueue(ctx context.Context, it *item) (err error) {
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

// Flush returns once all that was queued before is written, and the head file
// too; or says why that cannot be.
func (l *Log) Flush(ctx context.Context) error {
	if err := l.wait(ctx, &item{done: make(chan error, 1)}); err != nil {
		return err
	}
	return l.head.wait(ctx, l.written().Seq)
}

// Head is "SEQ:HASH" of the last record that is written. Kept elsewhere, it
// lets Verify find a log that was cut or made anew.
func (l *Log) Head(context.Context) string { return l.written().String() }

func (l *Log) written() head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Close writes what is queued and ends the log. It says whether something
// could not be written; the store is the caller's to close.
func (l *Log) Close() error {
	l.closing.Lock()
	first := !l.closed
	l.closed = true
	l.closing.Unlock()
	if first {
		close(l.stop)
	}
	<-l.stopped
	<-l.headed
	return l.failed
}

// String is the form that users keep.
func (h head) String() string { return fmt.Sprintf("%d:%s", h.Seq, hex.EncodeToString(h.Hash)) }
