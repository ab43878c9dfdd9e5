package client

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Create starts a job and returns it at once. With IdempotencyKey, a repeated request returns the
// job as it was created.
func (s Jobs) Create(ctx context.Context, r v1.JobRequest, opts ...Option) (v1.Job, error) {
	return callJSONWithBody[v1.Job](ctx, s.c, newCall(http.MethodPost, "jobs"), r, opts)
}

// List lists the caller's jobs, newest first. With all, which is for operators, it lists the jobs
// of every caller.
func (s Jobs) List(ctx context.Context, all bool) ([]v1.Job, error) {
	l, err := callJSON[v1.List[v1.Job]](ctx, s.c, newCall(http.MethodGet, "jobs").flag("all", all))
	return l.Items, err
}

// Get returns one job.
func (s Jobs) Get(ctx context.Context, id string) (v1.Job, error) {
	return callJSON[v1.Job](ctx, s.c, newCall(http.MethodGet, "jobs", id))
}

// Wait waits for a job's end and returns it. If the connection is cut or the server restarts, Wait
// goes on waiting, unless no server answers at the start.
func (s Jobs) Wait(ctx context.Context, id string) (v1.Job, error) {
	pause := followPauseMin
	for answered := false; ; {
		j, err := callJSON[v1.Job](ctx, s.c, newCall(http.MethodGet, "jobs", id).duration("wait_ms", followWait))
		switch {
		case err == nil && j.State == "ended":
			return j, nil
		case err == nil:
			answered, pause = true, followPauseMin
			continue
		case !errdefs.IsUnavailable(err) || context.Cause(ctx) != nil || !answered && errors.Is(err, ErrNoServer):
			return v1.Job{}, err
		}
		if pause, err = nextPause(ctx, pause); err != nil {
			return v1.Job{}, err
		}
	}
}

// nextPause waits for the pause between two attempts to reconnect and returns the next one.
func nextPause(ctx context.Context, pause time.Duration) (time.Duration, error) {
	select {
	case <-time.After(pause):
		return min(2*pause, followPauseMax), nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Cancel ends the queued commands of a job and kills the running ones. It does not wait for them.
func (s Jobs) Cancel(ctx context.Context, id string) (v1.Job, error) {
	return callJSON[v1.Job](ctx, s.c, newCall(http.MethodPost, "jobs", id, "cancel"))
}

// Remove removes an ended job with its results, output and artifacts.
func (s Jobs) Remove(ctx context.Context, id string) error {
	return s.c.doJSON(ctx, newCall(http.MethodDelete, "jobs", id), nil)
}

// Results returns up to limit commands of a job with their results, from index from on. A limit of
// 0 takes the server's maximum, 1000.
func (s Jobs) Results(ctx context.Context, id string, from, limit int) ([]v1.JobResult, error) {
	k := newCall(http.MethodGet, "jobs", id, "commands").number("from", int64(from)).number("limit", int64(limit))
	l, err := callJSON[v1.List[v1.JobResult]](ctx, s.c, k)
	return l.Items, err
}

// JobOutputRequest selects output of a command. An Attempt of 0 is the current or last one.
type JobOutputRequest struct {
	Index, Attempt int
	OutputRequest
}

// Output returns a piece of the output of a command, up to 1 MiB.
func (s Jobs) Output(ctx context.Context, id string, r JobOutputRequest) (v1.JobOutput, error) {
	k := newCall(http.MethodGet, "jobs", id, "commands", strconv.Itoa(r.Index), "output").set("stream", r.Stream)
	k.number("offset", r.Offset).number("limit", r.Limit).duration("wait_ms", r.Wait)
	return callJSON[v1.JobOutput](ctx, s.c, k.number("attempt", int64(r.Attempt)))
}

// CopyOutput copies the kept output of a command to w until the stream ends, or only what there is
// now if follow is not set. It ignores gaps, and reconnects if the server restarts.
func (s Jobs) CopyOutput(ctx context.Context, id string, r JobOutputRequest, follow bool, w io.Writer) error {
	pause := followPauseMin
	for {
		r.Wait = 0
		if follow {
			r.Wait = followWait
		}
		out, err := s.Output(ctx, id, r)
		if err != nil {
			if !follow || !errdefs.IsUnavailable(err) || context.Cause(ctx) != nil {
				return err
			}
			if pause, err = nextPause(ctx, pause); err != nil {
				return err
			}
			continue
		}
		pause = followPauseMin
		r.Attempt = out.Attempt
		data := []byte(out.Data)
		if out.Base64 != "" {
			if data, err = base64.StdEncoding.DecodeString(out.Base64); err != nil {
				return err
			}
		}
		if _, err := w.Write(data); err != nil {
			return &writerError{"output", err}
		}
		if out.EOF || !follow && len(data) == 0 {
			return nil
		}
		r.Offset = out.NextOffset
	}
}

// Artifacts lists the files that the commands of a job left.
func (s Jobs) Artifacts(ctx context.Context, id string) (all []v1.JobArtifact, err error) {
	for {
		k := newCall(http.MethodGet, "jobs", id, "artifacts")
		if n := len(all); n > 0 {
			k.number("from", int64(all[n-1].Index)).set("after", all[n-1].Path)
		}
		l, err := callJSON[v1.List[v1.JobArtifact]](ctx, s.c, k)
		if err != nil || len(l.Items) == 0 {
			return all, err
		}
		all = append(all, l.Items...)
	}
}

// Artifact opens a file that a command left. The caller must close it.
func (s Jobs) Artifact(ctx context.Context, id string, index int, path string) (io.ReadCloser, error) {
	k := newCall(http.MethodGet, "jobs", id, "commands", strconv.Itoa(index), "artifact").set("path", path)
	return s.raw(ctx, k, "application/octet-stream")
}

// JUnit opens the results of a job as JUnit XML. The caller must close it.
func (s Jobs) JUnit(ctx context.Context, id string) (io.ReadCloser, error) {
	return s.raw(ctx, newCall(http.MethodGet, "jobs", id, "junit"), "application/xml")
}

func (s Jobs) raw(ctx context.Context, k *call, accept string) (io.ReadCloser, error) {
	k.accept = accept
	resp, err := s.c.send(ctx, k)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
