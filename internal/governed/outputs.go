package governed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Limits of kept outputs, which exceed their answers.
const (
	keptStream = 16 << 20 // per stream
	keptAll    = 1 << 30
	keptCaller = keptAll / 4 // per caller, so that one cannot use all of it
	keptFile   = 4 << 10     // overhead per file
	keptTime   = time.Hour
	keptSweep  = time.Minute
)

var errOutputsFull = fmt.Errorf(
	"kept outputs exceed %d bytes, or %d of one caller: %w",
	int64(keptAll),
	int64(keptCaller),
	errdefs.ErrResourceExhausted,
)

// outputs keeps the whole output of calls whose answers were cut. The files are removed when they
// are too old or too large. The path contains a digest of the caller, so that callers cannot read
// each other's output.
type outputs struct {
	dir string

	mu    sync.Mutex
	bytes int64            // approximate size of all files
	each  map[string]int64 // by directory of a caller
}

func openOutputs(dir string) (*outputs, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of outputs: %w", err)
	}
	o := &outputs{dir: dir}
	err := o.sweep(time.Now())
	return o, err
}

func (o *outputs) callerDir(caller string) string { return filepath.Join(o.dir, digest(caller)) }

// digest returns a file name for any string.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

func (o *outputs) path(caller, id, stream string) string {
	return filepath.Join(o.callerDir(caller), id+"."+stream)
}

// newOutput returns a writer that keeps a stream after more than room bytes were written.
func (o *outputs) newOutput(caller, id, stream string, room int64) *keptOutput {
	return &keptOutput{outputs: o, path: o.path(caller, id, stream), room: room}
}

// keptOutput keeps one stream. It buffers up to room bytes and then writes to a file. A file error
// only ends the keeping: the call continues. It is not safe for concurrent use.
type keptOutput struct {
	outputs *outputs
	path    string
	room    int64
	buffer  []byte
	file    *os.File
	size    int64
	failed  error
}

// Write implements io.Writer. It never fails: an error is remembered in failed.
func (k *keptOutput) Write(p []byte) (int, error) {
	if k.failed == nil && k.file == nil {
		if int64(len(k.buffer)+len(p)) <= k.room {
			k.buffer = append(k.buffer, p...)
			return len(p), nil
		}
		k.failed = k.openFile()
	}
	if k.failed == nil {
		k.append(p)
	}
	return len(p), nil
}

func (k *keptOutput) openFile() error {
	if !k.outputs.reserve(filepath.Dir(k.path), keptFile) {
		return errOutputsFull
	}
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(k.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	k.file = f
	k.append(k.buffer)
	k.buffer = nil
	return nil
}

func (k *keptOutput) append(p []byte) {
	p = p[:min(int64(len(p)), keptStream-k.size)]
	if len(p) == 0 || k.failed != nil {
		return
	}
	if !k.outputs.reserve(filepath.Dir(k.path), int64(len(p))) {
		k.failed = errOutputsFull
		return
	}
	n, err := k.file.Write(p)
	k.size += int64(n)
	k.failed = err
}

// done closes the file and reports whether there is one. If cut is set, it first writes a file for
// output that is still buffered.
func (k *keptOutput) done(cut bool) (bool, error) {
	if k.file == nil && cut && k.failed == nil {
		k.failed = k.openFile()
	}
	if k.file == nil {
		return false, k.failed
	}
	return true, errors.Join(k.failed, k.file.Close())
}

func (o *outputs) reserve(dir string, n int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes+n > keptAll || o.each[dir]+n > keptCaller {
		return false
	}
	o.bytes += n
	o.each[dir] += n
	return true
}

// run removes old files until ctx ends.
func (o *outputs) run(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(keptSweep)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			if err := o.sweep(now); err != nil {
				log.Warn("failed to remove old outputs; will retry", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// sweep removes old files, and the oldest while the total is too large.
func (o *outputs) sweep(now time.Time) error {
	type file struct {
		path string
		size int64
		mod  time.Time
	}
	var files []file
	var total int64
	err := filepath.WalkDir(o.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreMissing(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		files = append(files, file{path, info.Size() + keptFile, info.ModTime()})
		total += info.Size() + keptFile
		return nil
	})
	if err != nil {
		return fmt.Errorf("kept outputs: %w", err)
	}
	slices.SortFunc(files, func(a, b file) int { return a.mod.Compare(b.mod) })
	each := map[string]int64{}
	for _, f := range files {
		each[filepath.Dir(f.path)] += f.size
	}
	for _, f := range files {
		dir := filepath.Dir(f.path)
		if now.Sub(f.mod) < keptTime && total <= keptAll/4*3 && each[dir] <= keptCaller/4*3 {
			continue
		}
		if err := ignoreMissing(os.Remove(f.path)); err != nil {
			return fmt.Errorf("kept outputs: %w", err)
		}
		total -= f.size
		each[dir] -= f.size
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes, o.each = total, each
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// read returns a part of a kept output. It returns NotFound if the caller has no kept output with
// this id.
func (o *outputs) read(caller, id string, r core.OutputRequest) (out v1.Output, err error) {
	if _, err := uuid.Parse(id); err != nil || len(id) != 36 {
		return out, usererror.Errorf(errdefs.ErrNotFound, "output of call %q not found", audit.TruncateName(id))
	}
	if r.Stream == "" {
		r.Stream = "stdout"
	}
	if err := r.Validate(); err != nil {
		return out, err
	}
	f, err := os.Open(o.path(caller, id, r.Stream))
	if errors.Is(err, fs.ErrNotExist) {
		if other := o.path(caller, id, otherStream(r.Stream)); exists(other) {
			return v1.Output{
				Stream:     r.Stream,
				Offset:     r.Offset,
				NextOffset: r.Offset,
				EOF:        true,
			}, nil // only the other stream was cut
		}
		return out, usererror.Errorf(errdefs.ErrNotFound, "output of call %s not found", id)
	}
	if err != nil {
		return out, fmt.Errorf("output of call %s: %w", id, err)
	}
	defer f.Close()
	limit := r.Limit
	if limit == 0 || limit > core.MaxPiece {
		limit = core.MaxPiece
	}
	b, err := io.ReadAll(io.NewSectionReader(f, r.Offset, limit))
	if err != nil {
		return out, fmt.Errorf("output of call %s: %w", id, err)
	}
	info, err := f.Stat()
	if err != nil {
		return out, fmt.Errorf("output of call %s: %w", id, err)
	}
	out = v1.Output{
		Stream:     r.Stream,
		Offset:     r.Offset,
		NextOffset: r.Offset + int64(len(b)),
		EOF:        r.Offset+int64(len(b)) >= info.Size(),
	}
	out.Data, out.Base64 = core.EncodeOutput(b)
	return out, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func otherStream(s string) string {
	if s == "stdout" {
		return "stderr"
	}
	return "stdout"
}
