package api

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/jobs"
)

func (s *Server) jobRoutes() []route {
	return []route{
		{
			method: "POST", path: "/v1/jobs", direct: true, handle: s.createJob, status: http.StatusCreated, limit: maxExecBody,
			summary: "Run a command, a list or a matrix, each command in a sandbox of its own", body: v1.JobRequest{},
			answer: v1.Job{},
		},
		{
			method: "GET", path: "/v1/jobs", handle: s.listJobs,
			summary: "List jobs, newest first; with all, for operators: of every caller", query: []string{"all"},
			answer: v1.List[v1.Job]{},
		},
		{
			method: "GET", path: "/v1/jobs/{id}", handle: s.getJob,
			summary: "Describe a job; with wait_ms, wait for its end first", query: []string{"wait_ms"}, answer: v1.Job{},
		},
		{method: "DELETE", path: "/v1/jobs/{id}", handle: s.removeJob, summary: "Remove an ended job with what it kept"},
		{
			method: "POST", path: "/v1/jobs/{id}/cancel", handle: s.cancelJob,
			summary: "End queued commands and kill running ones", answer: v1.Job{},
		},
		{
			method: "GET", path: "/v1/jobs/{id}/commands", handle: s.listJobResults,
			summary: "List the commands of a job with their results, from an index on", query: []string{"from", "limit"},
			answer: v1.List[v1.JobResult]{},
		},
		{
			method: "GET", path: "/v1/jobs/{id}/commands/{index}/output", handle: s.jobOutput,
			summary: "Read the output of a command from an offset",
			query:   []string{"stream", "offset", "limit", "wait_ms", "attempt"}, answer: v1.JobOutput{},
		},
		{
			method: "GET", path: "/v1/jobs/{id}/artifacts", handle: s.listJobArtifacts,
			summary: "List the files that commands left, up to 1000, after the path after of the command from",
			query:   []string{"from", "after"}, answer: v1.List[v1.JobArtifact]{},
		},
		{
			method: "GET", path: "/v1/jobs/{id}/commands/{index}/artifact", handle: s.getJobArtifact,
			summary: "Read a file that a command left", query: []string{"path"}, needs: []string{"path"}, also: rawForm(),
		},
		{method: "GET", path: "/v1/jobs/{id}/junit", handle: s.jobJUnit, summary: "Describe the results as JUnit XML",
			also: []answerForm{{"application/xml", nil}}},
	}
}

func (s *Server) createJob(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.JobRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Jobs.Create(r.Context(), p, req)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/jobs/"+got.ID)
	return reply(w, http.StatusCreated, got)
}

func (s *Server) listJobs(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "all")
	all := q.boolean("all")
	if q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Jobs.List(r.Context(), p, all)
	return replyList(w, items, err)
}

func (s *Server) getJob(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "wait_ms")
	wait := q.millis("wait_ms")
	if q.err != nil {
		return q.err
	}
	ctx, cancel := s.untilStop(r)
	defer cancel()
	got, err := s.opts.Engine.Jobs.Get(ctx, p, r.PathValue("id"), wait)
	return replyOK(w, got, err)
}

func (s *Server) removeJob(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	return replyDone(w, s.opts.Engine.Jobs.Remove(r.Context(), p, r.PathValue("id")))
}

func (s *Server) cancelJob(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Jobs.Cancel(r.Context(), p, r.PathValue("id"))
	return replyOK(w, got, err)
}

func (s *Server) listJobResults(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "from", "limit")
	from, limit := q.number("from"), q.number("limit")
	if q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Jobs.Results(r.Context(), p, r.PathValue("id"), bounded(from), bounded(limit))
	return replyList(w, items, err)
}

// bounded converts a number to an int. No list is longer than its largest value.
func bounded(n int64) int { return int(min(n, 1<<30)) }

// indexOf returns the index of a command in the path.
func (q *query) indexOf(r *http.Request) int {
	n, err := strconv.ParseUint(r.PathValue("index"), 10, 30)
	if err != nil {
		q.fail("index", "is not the number of a command, from 0")
	}
	return int(n) // at most 30 bits
}

func (s *Server) jobOutput(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "stream", "offset", "limit", "wait_ms", "attempt")
	req := jobs.OutputRequest{
		Index: q.indexOf(r), Attempt: bounded(q.number("attempt")),
		OutputRequest: core.OutputRequest{
			Stream: q.text("stream"), Offset: q.number("offset"), Limit: q.number("limit"), Wait: q.millis("wait_ms"),
		},
	}
	if q.err != nil {
		return q.err
	}
	ctx, cancel := s.untilStop(r)
	defer cancel()
	got, err := s.opts.Engine.Jobs.Output(ctx, p, r.PathValue("id"), req)
	return replyOK(w, got, err)
}

func (s *Server) listJobArtifacts(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "from", "after")
	from, after := q.number("from"), q.text("after")
	if q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Jobs.Artifacts(r.Context(), p, r.PathValue("id"), bounded(from), after)
	return replyList(w, items, err)
}

func (s *Server) getJobArtifact(w http.ResponseWriter, r *http.Request, p caller.Principal) (err error) {
	q := queryOf(r, "path")
	index, path := q.indexOf(r), q.text("path")
	if q.err != nil {
		return q.err
	}
	body, info, err := s.opts.Engine.Jobs.Artifact(r.Context(), p, r.PathValue("id"), index, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	w.Header().Set("Content-Type", formRaw)
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size, 10))
	w.WriteHeader(http.StatusOK)
	_, err = io.Copy(w, body)
	return err
}

func (s *Server) jobJUnit(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	body, err := s.opts.Engine.Jobs.JUnit(r.Context(), p, r.PathValue("id"))
	if err != nil {
		return err
	}
	return sendCounted(w, http.StatusOK, "application/xml", body)
}
