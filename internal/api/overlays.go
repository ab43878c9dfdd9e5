package api

import (
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func (s *Server) overlayRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/workspaces/{name}/overlays", handle: s.listOverlays,
			summary: "List the overlays of a workspace", answer: v1.List[v1.Overlay]{},
		},
		{
			method: "GET", path: "/v1/overlays/{id}", handle: s.getOverlay,
			summary: "Describe an overlay by the id of its sandbox", answer: v1.Overlay{},
		},
		{
			method: "POST", path: "/v1/overlays/{id}/diff", handle: s.diffOverlay,
			summary: "List the changes of an overlay", body: v1.DiffRequest{}, answer: v1.Diff{},
		},
		{
			method: "POST", path: "/v1/overlays/{id}/commit", direct: true, handle: s.commitOverlay,
			summary: "Apply changes of an overlay to its workspace, all or nothing",
			body:    v1.CommitRequest{}, answer: v1.Commit{},
		},
		{
			method: "DELETE", path: "/v1/overlays/{id}", direct: true, handle: s.discardOverlay,
			summary: "Discard the changes of an overlay", query: []string{"end"},
		},
		{
			method: "POST", path: "/v1/workspaces/{name}/snapshots", direct: true, handle: s.makeSnapshot, status: http.StatusCreated,
			summary: "Copy the files of an unused workspace",
			body:    v1.SnapshotRequest{}, answer: v1.Snapshot{},
		},
		{
			method: "GET", path: "/v1/workspaces/{name}/snapshots", handle: s.listSnapshots,
			summary: "List the snapshots of a workspace", answer: v1.List[v1.Snapshot]{},
		},
		{
			method: "DELETE", path: "/v1/workspaces/{name}/snapshots/{id}", direct: true, handle: s.removeSnapshot,
			summary: "Remove a snapshot by its id or label",
		},
		{
			method: "POST", path: "/v1/workspaces/{name}/restore", direct: true, handle: s.restore,
			summary: "Restore an unused workspace from a snapshot",
			body:    v1.RestoreRequest{}, answer: v1.Snapshot{},
		},
	}
}

func (s *Server) listOverlays(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	items, err := s.opts.Engine.Workspaces.Overlays(r.Context(), p, r.PathValue("name"))
	return replyList(w, items, err)
}

func (s *Server) getOverlay(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Workspaces.FindOverlay(r.Context(), p, r.PathValue("id"))
	return replyOK(w, got, err)
}

func (s *Server) diffOverlay(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.DiffRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Workspaces.DiffOverlay(r.Context(), p, r.PathValue("id"), req.Paths, req.Text)
	return replyOK(w, got, err)
}

func (s *Server) commitOverlay(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.CommitRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Workspaces.CommitOverlay(r.Context(), p, r.PathValue("id"), req)
	return replyOK(w, got, err)
}

func (s *Server) discardOverlay(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "end")
	end := q.boolean("end")
	if q.err != nil {
		return q.err
	}
	return replyDone(w, s.opts.Engine.Workspaces.DiscardOverlay(r.Context(), p, r.PathValue("id"), end))
}

func (s *Server) makeSnapshot(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.SnapshotRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Workspaces.Snapshot(r.Context(), p, r.PathValue("name"), req.Label)
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, got)
}

func (s *Server) listSnapshots(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	items, err := s.opts.Engine.Workspaces.Snapshots(r.Context(), p, r.PathValue("name"))
	return replyList(w, items, err)
}

func (s *Server) removeSnapshot(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	return replyDone(w, s.opts.Engine.Workspaces.RemoveSnapshot(r.Context(), p, r.PathValue("name"), r.PathValue("id")))
}

func (s *Server) restore(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.RestoreRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Workspaces.Restore(r.Context(), p, r.PathValue("name"), req.Snapshot)
	return replyOK(w, got, err)
}
