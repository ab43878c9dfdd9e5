package jobs

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// output keeps the last bytes of a stream in a file. The file begins with the total number of bytes
// of the stream and the size of the ring that follows. The total is written after the bytes that it
// counts: after a crash, the same bytes are written again.
type output struct {
	space *space
	job   string
	size  int64 // of the ring

	mu      sync.Mutex
	file    *os.File // nil until the first byte
	path    string
	length  int64 // bytes of the ring that are counted in space
	counted bool  // the file is counted in space
	total   int64
	kept    int64         // first byte that is kept
	failed  error         // why no further bytes are kept
	changed chan struct{} // closed when bytes are added or the stream ends
	closed  bool
}

// outputHead is the length of the file's head: total, ring size and first kept byte.
const outputHead = 24

// openOutput opens the output of a stream for writing, or creates it.
func openOutput(sp *space, job, path string, size int64) (*output, error) {
	o := &output{space: sp, job: job, size: size, path: path, changed: make(chan struct{})}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	if err := o.readHead(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	o.file, o.counted = f, true
	return o, nil
}

// readHead reads the head of a file. A head that was never written is that of an empty stream.
func (o *output) readHead(f *os.File) error {
	var head [outputHead]byte
	switch n, err := f.ReadAt(head[:], 0); {
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read output: %w", err)
	case n < outputHead:
		return nil
	}
	total, size, kept := get(head[0:]), get(head[8:]), get(head[16:])
	if total < 0 || size <= 0 || kept < 0 || kept > total {
		return fmt.Errorf("read output: invalid head: %w", errdefs.ErrDataLoss)
	}
	o.total, o.size, o.kept, o.length = total, size, kept, min(total, size)
	return nil
}

func get(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) } // readHead checks it

func put(b []byte, n int64) { binary.LittleEndian.PutUint64(b, uint64(n)) } // it is not negative

// write adds the bytes of the stream from offset on. An offset beyond the end skips the bytes
// between. Bytes that cannot be kept are counted, and close returns the reason: a full disk does
// not end a command.
func (o *output) write(offset int64, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if skip := o.total - offset; skip > 0 { // written before a crash
		p = p[min(skip, int64(len(p))):]
	} else if skip < 0 {
		o.total, o.kept = offset, offset
	}
	if len(p) == 0 {
		return nil
	}
	total := o.total + int64(len(p))
	if cut := int64(len(p)) - o.size; cut > 0 {
		p = p[cut:]
	}
	if o.failed == nil && o.reserve(min(total, o.size)) {
		o.failed = o.keep(total, p)
	} else {
		o.kept = total // count the bytes without keeping them
	}
	if o.failed != nil {
		o.kept = total
	}
	o.kept, o.total = max(o.kept, total-o.size), total
	close(o.changed)
	o.changed = make(chan struct{})
	return nil
}

// reserve counts a ring of the given length in space, or reports false if it does not fit.
func (o *output) reserve(length int64) bool {
	grow := max(length-o.length, 0)
	if !o.counted {
		grow += fileBytes
	}
	if grow > 0 && !o.space.take(o.job, grow) {
		return false
	}
	o.length, o.counted = max(o.length, length), true
	return true
}

// keep writes the last bytes of a stream of the given length, and then the file's head.
func (o *output) keep(total int64, p []byte) error {
	if o.file == nil {
		f, err := os.OpenFile(o.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		o.file = f
	}
	if err := o.writeRing(total-int64(len(p)), p); err != nil {
		return err
	}
	var head [outputHead]byte
	put(head[0:], total)
	put(head[8:], o.size)
	put(head[16:], max(o.kept, total-o.size))
	if _, err := o.file.WriteAt(head[:], 0); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// writeRing writes bytes at their place in the ring.
func (o *output) writeRing(offset int64, p []byte) error {
	for len(p) > 0 {
		at := offset % o.size
		n, err := o.file.WriteAt(p[:min(int64(len(p)), o.size-at)], outputHead+at)
		if err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}

// end reports the length of the stream.
func (o *output) end() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.total
}

// truncated reports whether the beginning of the stream is not kept.
func (o *output) truncated() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept > 0
}

// close ends the stream for readers that wait.
func (o *output) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		close(o.changed)
	}
	if o.file == nil {
		return o.failed
	}
	err := o.file.Close()
	o.file = nil
	return errors.Join(o.failed, err)
}

// await waits until the stream is longer than offset, has ended, or ctx ends.
func (o *output) await(ctx context.Context, offset int64) {
	for {
		o.mu.Lock()
		changed, ready := o.changed, o.closed || o.total > offset
		o.mu.Unlock()
		if ready {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// read returns up to limit bytes from offset on, or from the first one that is kept.
func (o *output) read(offset, limit int64) (first int64, data []byte, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first = min(max(offset, o.kept), o.total)
	if o.closed && o.total > first {
		return first, nil, fs.ErrClosed
	}
	data = make([]byte, min(limit, o.total-first))
	for done := int64(0); o.file != nil && done < int64(len(data)); {
		at := (first + done) % o.size
		n, err := o.file.ReadAt(data[done:min(int64(len(data)), done+o.size-at)], outputHead+at)
		if err != nil && n == 0 {
			return first, nil, fmt.Errorf("read output: %w", err)
		}
		done += int64(n)
	}
	return first, data, nil
}

// OutputRequest selects a piece of the output of a command.
type OutputRequest struct {
	Index   int
	Attempt int // 0: the current or last one
	core.OutputRequest
}

// Output returns a piece of the output of one attempt of a command, at most core.MaxPiece bytes.
func (s *Service) Output(ctx context.Context, p caller.Principal, id string, r OutputRequest) (v1.JobOutput, error) {
	if err := r.Validate(); err != nil {
		return v1.JobOutput{}, err
	}
	if r.Limit == 0 || r.Limit > core.MaxPiece {
		r.Limit = core.MaxPiece
	}
	wait, cancel := context.WithTimeout(ctx, r.Wait)
	defer cancel()
	for {
		changed := s.changedOf(id, r.Index) // before the row is read
		c, err := s.findCommand(ctx, p, id, r.Index)
		if err != nil {
			return v1.JobOutput{}, err
		}
		number := cmp.Or(r.Attempt, lastAttempt(c))
		if number < 1 || number > c.Attempt {
			return v1.JobOutput{}, usererror.Invalid("attempt", "is %d: from 1 to %d", number, c.Attempt)
		}
		path := s.outputPath(id, r.Index, number, r.Stream)
		if o, live := s.liveOutput(path); live {
			o.await(wait, r.Offset)
			if out, err := o.piece(r); err == nil && (wait.Err() != nil || out.NextOffset > out.Offset) {
				out.Attempt = number
				return out, context.Cause(ctx)
			}
		}
		ended := c.State == store.JobEnded || number < c.Attempt
		if ended || changed == nil || wait.Err() != nil {
			return s.storedOutput(ctx, p, id, path, number, ended, r)
		}
		select {
		case <-changed:
		case <-wait.Done():
		}
		if err := context.Cause(ctx); err != nil {
			return v1.JobOutput{}, err
		}
	}
}

// storedOutput returns a piece of an output that is not being written.
func (s *Service) storedOutput(
	ctx context.Context, p caller.Principal, id, path string, number int, ended bool, r OutputRequest,
) (v1.JobOutput, error) {
	o, err := openOutput(nil, id, path, 1)
	if err != nil {
		return v1.JobOutput{}, err
	}
	defer o.close()
	if o.file == nil { // nothing was written, or the job is being removed
		if _, err := s.find(ctx, p, id); err != nil {
			return v1.JobOutput{}, err
		}
	}
	out, err := o.piece(r)
	out.Attempt, out.EOF = number, ended && out.NextOffset >= o.end()
	return out, err
}

// piece returns a piece of an open output. EOF is not set.
func (o *output) piece(r OutputRequest) (v1.JobOutput, error) {
	first, data, err := o.read(r.Offset, r.Limit)
	if err != nil {
		return v1.JobOutput{}, err
	}
	out := v1.JobOutput{
		Stream: r.Stream, Offset: first, NextOffset: first + int64(len(data)), Gap: max(0, first-r.Offset),
	}
	out.Data, out.Base64 = core.EncodeOutput(data)
	return out, nil
}

// changedOf returns a channel that is closed when the command starts or ends, or when the job has
// ended. It is nil if the job has ended.
func (s *Service) changedOf(id string, index int) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.active[id]
	if j == nil {
		return nil
	}
	if j.changed[index] == nil {
		j.changed[index] = make(chan struct{})
	}
	return j.changed[index]
}

// lastAttempt returns the attempt whose output a caller wants: the current one, or the one before
// if the current one has not started.
func lastAttempt(c store.JobCommand) int {
	if c.State == store.JobQueued {
		return max(1, c.Attempt-1)
	}
	return c.Attempt
}

// liveOutput returns the open output at path. live is false if there is none.
func (s *Service) liveOutput(path string) (o *output, live bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, live = s.outputs[path]
	return o, live
}

// openLive opens an output of an attempt for writing and makes it visible to readers.
func (s *Service) openLive(a *attempt, path string, size int64) (*output, error) {
	o, err := openOutput(a.space, a.id, path, size)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outputs[path] = o
	a.notify(a.index)
	return o, nil
}

// closeLive closes an output. Readers then use the file.
func (s *Service) closeLive(o *output) error {
	s.mu.Lock()
	delete(s.outputs, o.path)
	s.mu.Unlock()
	return o.close()
}
