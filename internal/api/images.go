package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func (s *Server) imageRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/images", handle: s.listImages, summary: "List images", answer: v1.List[v1.Image]{}},
		{
			method: "POST", path: "/v1/images", handle: s.importImage, status: http.StatusCreated, takes: bodyUpload, operator: true,
			summary: "Import the archive in the body", query: []string{"ref"}, answer: v1.List[v1.Image]{},
		},
		{
			method: "DELETE", path: "/v1/images", handle: s.removeImage, operator: true,
			summary: "Remove an image", query: []string{"ref"}, needs: []string{"ref"},
		},
		{
			method: "POST", path: "/v1/images/pull", handle: s.pullImage, operator: true,
			summary: "Pull an image from its registry", body: v1.PullRequest{}, answer: v1.List[v1.Image]{},
			also: []answerForm{{formEvents, v1.PullEvent{}}},
		},
		{
			method: "POST", path: "/v1/images/build", handle: s.buildImage, takes: bodyUpload, operator: true,
			summary: "Build an image from the context in the body, a tar archive with a Dockerfile",
			query:   []string{"ref", "file", "target", "network", "args", "keep"}, needs: []string{"ref"}, answer: v1.List[v1.Image]{},
			also: []answerForm{{formEvents, v1.PullEvent{}}},
		},
		{
			method: "POST", path: "/v1/images/gc", handle: s.collectImages, operator: true,
			summary: "Remove unused images, or only list them (dry_run)",
			query:   []string{"dry_run"}, answer: v1.ImageCollection{},
		},
		{
			method: "PUT", path: "/v1/images/pin", handle: s.pinImage, operator: true,
			summary: "Pin an image, so that it is never collected", query: []string{"ref"}, needs: []string{"ref"}, answer: v1.List[v1.Image]{},
		},
		{
			method: "DELETE", path: "/v1/images/pin", handle: s.pinImage, id: "unpinImage", operator: true,
			summary: "Unpin an image", query: []string{"ref"}, needs: []string{"ref"}, answer: v1.List[v1.Image]{},
		},
	}
}

func (s *Server) listImages(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	items, err := s.opts.Engine.Images.List(r.Context(), p)
	return replyList(w, items, err)
}

func (s *Server) importImage(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "ref")
	if q.err != nil {
		return q.err
	}
	got, err := s.opts.Engine.Images.Import(r.Context(), p, r.Body, q.text("ref"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, v1.List[v1.Image]{Items: got})
}

func (s *Server) removeImage(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "ref")
	if q.err != nil {
		return q.err
	}
	return replyDone(w, s.opts.Engine.Images.Remove(r.Context(), p, q.text("ref")))
}

// pullImage answers when the image is stored, or reports progress as events. If the client goes
// away, the pull is canceled unless others wait for it.
func (s *Server) pullImage(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.PullRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	f, err := form(r, formJSON, formEvents)
	if err != nil {
		return err
	}
	ctx, cancel := s.untilStop(r)
	defer cancel()
	if f == formEvents {
		return s.imageEvents(ctx, w, func(ctx context.Context, tell func(v1.PullEvent)) error {
			got, err := s.opts.Engine.Images.Pull(ctx, p, req, tell)
			if err == nil {
				tell(v1.PullEvent{Type: "end", Images: got})
			}
			return err
		})
	}
	got, err := s.opts.Engine.Images.Pull(ctx, p, req, nil)
	return replyList(w, got, err)
}

// buildImage reads the whole context before it answers.
func (s *Server) buildImage(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "ref", "file", "target", "network", "args", "keep")
	req := v1.BuildRequest{Ref: q.text("ref"), File: q.text("file"), Target: q.text("target"),
		Network: q.text("network"), Keep: q.boolean("keep")}
	if raw := q.text("args"); raw != "" {
		if err := json.Unmarshal([]byte(raw), &req.Args); err != nil {
			q.fail("args", "must be a JSON object of strings")
		}
	}
	if q.err != nil {
		return q.err
	}
	f, err := form(r, formJSON, formEvents)
	if err != nil {
		return err
	}
	ctx, cancel := s.untilStop(r)
	defer cancel()
	if f == formEvents {
		return s.imageEvents(ctx, w, func(ctx context.Context, tell func(v1.PullEvent)) error {
			got, err := s.opts.Engine.Images.Build(ctx, p, req, r.Body, tell)
			if err == nil {
				tell(v1.PullEvent{Type: "end", Images: got})
			}
			return err
		})
	}
	got, err := s.opts.Engine.Images.Build(ctx, p, req, r.Body, nil)
	return replyList(w, got, err)
}

func (s *Server) collectImages(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "dry_run")
	dry := q.boolean("dry_run")
	if q.err != nil {
		return q.err
	}
	got, err := s.opts.Engine.Images.Collect(r.Context(), p, dry)
	return replyOK(w, got, err)
}

func (s *Server) pinImage(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "ref")
	if q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Images.Pin(r.Context(), p, q.text("ref"), r.Method == http.MethodPut)
	return replyList(w, items, err)
}

// imageEvents runs do and sends the events that it reports as server-sent events. Each report waits
// until its event is sent, so nothing is queued for a slow client.
func (s *Server) imageEvents(
	ctx context.Context, w http.ResponseWriter, do func(ctx context.Context, tell func(v1.PullEvent)) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	events := make(chan v1.PullEvent)
	done := make(chan error, 1)
	go func() { // waited for below
		done <- recovered(func() error {
			return do(ctx, func(e v1.PullEvent) {
				select {
				case events <- e:
				case <-ctx.Done():
				}
			})
		})
	}()
	out := newSSE(w)
	beat := time.NewTicker(heartbeatTime)
	defer beat.Stop()
	for {
		var err error
		select {
		case e := <-events:
			err = out.send(e.Type, e)
		case <-beat.C:
			err = out.beat()
		case err := <-done:
			if err != nil && out.began {
				return out.problem(err)
			}
			return err
		}
		if err != nil { // the client is gone
			err = fmt.Errorf("%w: %w", context.Canceled, err)
			cancel(err)
			<-done
			return err
		}
	}
}

func (s *Server) templateRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/templates", handle: s.listTemplates,
			summary: "List templates", answer: v1.List[v1.Template]{},
		},
		{
			method: "GET", path: "/v1/templates/{name}", handle: s.getTemplate,
			summary: "Describe a template", answer: v1.Template{},
		},
		{
			method: "POST", path: "/v1/templates/reload", handle: s.reloadTemplates, operator: true,
			summary: "Reload the templates", answer: v1.TemplateReload{},
		},
	}
}

func (s *Server) listTemplates(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	return reply(w, http.StatusOK, v1.List[v1.Template]{Items: s.opts.Engine.Templates.List(r.Context(), p)})
}

func (s *Server) getTemplate(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Templates.Get(r.Context(), p, r.PathValue("name"))
	return replyOK(w, got, err)
}

func (s *Server) reloadTemplates(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Templates.ReloadFor(r.Context(), p)
	return replyOK(w, got, err)
}
