package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// fileBytes is counted for each file besides its length: what the file system and the database need
// for it, with the longest path of an artifact.
const fileBytes = 8 << 10

// space counts the bytes that one caller's jobs have on disk.
type space struct {
	limit int64
	slot  chan struct{} // holds one value while a large request of the caller is carried out

	mu   sync.Mutex
	used map[string]int64 // by job
}

func newSpace(limit int64) *space {
	return &space{limit: limit, slot: make(chan struct{}, 1), used: map[string]int64{}}
}

// enter waits until no other large request of the caller is carried out. The caller must call leave
// if the error is nil.
func (p *space) enter(ctx context.Context) error {
	select {
	case p.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *space) leave() { <-p.slot }

// take counts n bytes of a job, or reports false if the caller has no room for them.
func (p *space) take(job string, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := n
	for _, used := range p.used {
		total += used
	}
	if total > p.limit {
		return false
	}
	p.used[job] += n
	return true
}

// give returns n bytes of a job.
func (p *space) give(job string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[job] -= n
}

// drop forgets a job.
func (p *space) drop(job string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, job)
}

// callerSpace returns the space of a caller.
func (s *Service) callerSpace(caller string) *space {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.space[caller]
	if sp == nil {
		sp = newSpace(s.opts.Limits.Bytes)
		s.space[caller] = sp
	}
	return sp
}

// Names in a job's directory: inputs, outputs and artifacts.
func (s *Service) jobDir(id string) string { return filepath.Join(s.opts.Dir, id) }

func (s *Service) inputPath(id string, n int) string {
	return filepath.Join(s.jobDir(id), "input."+strconv.Itoa(n))
}

func (s *Service) outputPath(id string, index, attempt int, stream string) string {
	return filepath.Join(s.jobDir(id), fmt.Sprintf("output.%d.%d.%s", index, attempt, stream))
}

// artifactName returns the name of the n-th artifact of a command in the job's directory. The name
// in the sandbox is untrusted and only stored in the database.
func artifactName(index, n int) string { return fmt.Sprintf("artifact.%d.%d", index, n) }

// writeInputs writes the input files of a new job, whose commands have the given size in the
// database.
func (s *Service) writeInputs(sp *space, id string, commands int64, files []v1.JobFile) error {
	full := usererror.Errorf(errdefs.ErrResourceExhausted,
		"caller's jobs have %d bytes on disk, which is the limit: remove ended jobs", sp.limit)
	if !sp.take(id, commands) {
		return full
	}
	err := os.MkdirAll(s.jobDir(id), 0o700)
	for i, f := range files {
		var body []byte
		if err == nil {
			body, err = contentOf(f)
		}
		if err == nil && !sp.take(id, int64(len(body))+fileBytes) {
			err = full
		}
		if err == nil {
			err = os.WriteFile(s.inputPath(id, i), body, 0o600)
		}
	}
	if err != nil {
		sp.drop(id)
		return errors.Join(fmt.Errorf("write the files of a job: %w", err), os.RemoveAll(s.jobDir(id)))
	}
	return nil
}

// readInput returns the content of an input file.
func (s *Service) readInput(id string, n int) (*bytes.Reader, error) {
	body, err := os.ReadFile(s.inputPath(id, n))
	return bytes.NewReader(body), err
}

// removeFiles removes everything that a job has on disk.
func (s *Service) removeFiles(caller, id string) error {
	if err := os.RemoveAll(s.jobDir(id)); err != nil {
		return fmt.Errorf("remove the files of a job: %w", err)
	}
	s.callerSpace(caller).drop(id)
	return nil
}

// recoverFiles counts what the known jobs have on disk, and removes the files of others: a crash
// left them.
func (s *Service) recoverFiles(known map[string]store.JobSize) error {
	if err := os.MkdirAll(s.opts.Dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of jobs: %w", err)
	}
	entries, err := os.ReadDir(s.opts.Dir)
	if err != nil {
		return fmt.Errorf("read the directory of jobs: %w", err)
	}
	for id, size := range known {
		s.callerSpace(size.Caller).used[id] = size.Bytes
	}
	for _, e := range entries {
		size, ok := known[e.Name()]
		if !ok {
			if err := os.RemoveAll(filepath.Join(s.opts.Dir, e.Name())); err != nil {
				return fmt.Errorf("remove the files of an unknown job: %w", err)
			}
			continue
		}
		sp := s.callerSpace(size.Caller)
		err := filepath.WalkDir(s.jobDir(e.Name()), func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			sp.mu.Lock()
			defer sp.mu.Unlock()
			sp.used[e.Name()] += info.Size() + fileBytes
			return nil
		})
		if err != nil {
			return fmt.Errorf("count the files of a job: %w", err)
		}
	}
	return nil
}
