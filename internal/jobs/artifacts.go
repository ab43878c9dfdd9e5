package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Limits of the artifacts of one command.
const (
	maxArtifacts     = 1000
	maxArtifactBytes = 256 << 20 // of all of them
	artifactTime     = 2 * time.Minute
)

// keepArtifacts copies the files of an ended attempt that match the job's patterns. A failure does
// not change the command's ending: the result's detail names it.
func (s *Service) keepArtifacts(a *attempt, res *v1.ExecResult) {
	if len(a.request.Artifacts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, artifactTime)
	defer cancel()
	list, err := s.copyArtifacts(ctx, a)
	failpoint.Hit("jobs.artifacts.copied")
	err = errors.Join(err, s.rows.SetJobArtifacts(s.ctx, a.id, a.index, list))
	if err != nil {
		s.log.Warn("failed to keep artifacts of a job's command", "job", a.id, "command", a.index, "error", err)
		if res.Detail != "" {
			res.Detail += "; "
		}
		res.Detail += "not all artifacts were kept: " + explainArtifacts(err)
	}
}

func explainArtifacts(err error) string {
	if e, ok := errors.AsType[*usererror.Error](err); ok {
		return e.Message
	}
	return "they could not be read"
}

// copyArtifacts copies the files and returns those that were copied, also with an error.
func (s *Service) copyArtifacts(ctx context.Context, a *attempt) ([]store.JobArtifact, error) {
	use, err := a.lease.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer use.Leave()
	var names []string
	var errs []error
	for _, pattern := range a.request.Artifacts {
		got, err := use.Glob(use.Ctx, wire.GlobRequest{FileRequest: wire.FileRequest{Path: "."}, Pattern: pattern})
		if refused, ok := errors.AsType[*guest.Error](err); ok {
			errs = append(errs, usererror.Errorf(refused.Unwrap(), "pattern %q: %s", pattern, refused.Message))
			continue
		}
		if err != nil {
			return nil, a.lease.Explain(err)
		}
		if got.Truncated {
			errs = append(errs, usererror.Errorf(errdefs.ErrResourceExhausted, "pattern %q matches too many files", pattern))
		}
		for _, f := range got.Items {
			if f.Type == "file" {
				names = append(names, f.Path)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxArtifacts {
		names = names[:maxArtifacts]
		errs = append(errs, usererror.Errorf(errdefs.ErrResourceExhausted, "over %d files match", maxArtifacts))
	}
	list, err := s.copyFiles(use, a, names)
	return list, errors.Join(append(errs, err)...)
}

// copyFiles copies the files with the given names and returns those that were copied. It leaves out
// files that have changed, or that the sandbox does not let it read.
func (s *Service) copyFiles(use *scheduler.Use, a *attempt, names []string) (list []store.JobArtifact, err error) {
	left, skipped := int64(maxArtifactBytes), 0
	for i, name := range names {
		file := artifactName(a.index, i)
		n, err := s.copyArtifact(use, a, name, file, left)
		if _, refused := errors.AsType[*guest.Error](err); refused {
			skipped++
			continue
		}
		if err != nil {
			return list, err
		}
		left -= n
		list = append(list, store.JobArtifact{Index: a.index, Path: name, Size: n, File: file})
	}
	if skipped > 0 {
		err = usererror.Errorf(errdefs.ErrUnavailable, "%d of %d files could not be read", skipped, len(names))
	}
	return list, err
}

// copyArtifact copies one file of at most limit bytes. It replaces what an earlier process copied.
func (s *Service) copyArtifact(use *scheduler.Use, a *attempt, name, file string, limit int64) (n int64, err error) {
	in, info, err := use.ReadFile(use.Ctx, wire.FileRequest{Path: name, NoFollow: true})
	if err != nil {
		return 0, err
	}
	defer in.Close()
	if info.Size > limit {
		return 0, usererror.Errorf(errdefs.ErrResourceExhausted, "the files of a command are over %d bytes", maxArtifactBytes)
	}
	path, cost := filepath.Join(s.jobDir(a.id), file), info.Size+fileBytes
	if old, err := os.Stat(path); err == nil {
		if err := os.Remove(path); err != nil {
			return 0, fmt.Errorf("replace an artifact: %w", err)
		}
		a.space.give(a.id, old.Size()+fileBytes)
	}
	if !a.space.take(a.id, cost) {
		return 0, usererror.Errorf(errdefs.ErrResourceExhausted,
			"the caller's jobs have %d bytes on disk, which is the limit", a.space.limit)
	}
	if n, err = writeArtifact(path, in); err != nil {
		a.space.give(a.id, cost)
		return 0, errors.Join(err, os.Remove(path))
	}
	return n, nil
}

// writeArtifact copies in to a new file.
func writeArtifact(path string, in io.Reader) (n int64, err error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, fmt.Errorf("keep an artifact: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return io.Copy(out, in)
}

// Artifacts lists artifacts of a job, ordered by command and path, at most core.MaxListed: those
// after the path after of the command from, and of the commands behind it.
func (s *Service) Artifacts(
	ctx context.Context, p caller.Principal, id string, from int, after string,
) ([]v1.JobArtifact, error) {
	if _, err := s.find(ctx, p, id); err != nil {
		return nil, err
	}
	rows, err := s.rows.JobArtifacts(ctx, id, from, after, core.MaxListed)
	if err != nil {
		return nil, err
	}
	out := make([]v1.JobArtifact, 0, len(rows))
	for _, r := range rows {
		out = append(out, v1.JobArtifact{Index: r.Index, Path: r.Path, Size: r.Size})
	}
	return out, nil
}

// Artifact opens an artifact of a command. The caller must close it.
func (s *Service) Artifact(
	ctx context.Context, p caller.Principal, id string, index int, path string,
) (io.ReadCloser, v1.JobArtifact, error) {
	if _, err := s.find(ctx, p, id); err != nil {
		return nil, v1.JobArtifact{}, err
	}
	r, err := s.rows.JobArtifact(ctx, id, index, path)
	if errdefs.IsNotFound(err) {
		err = usererror.Errorf(errdefs.ErrNotFound, "artifact %q of command %d not found: list them first", path, index)
	}
	if err != nil {
		return nil, v1.JobArtifact{}, err
	}
	f, err := os.Open(filepath.Join(s.jobDir(id), r.File))
	if errors.Is(err, fs.ErrNotExist) { // the job is being removed
		if _, gone := s.find(ctx, p, id); gone != nil {
			err = gone
		}
	}
	if err != nil {
		return nil, v1.JobArtifact{}, fmt.Errorf("read an artifact: %w", err)
	}
	return f, v1.JobArtifact{Index: r.Index, Path: r.Path, Size: r.Size}, nil
}
