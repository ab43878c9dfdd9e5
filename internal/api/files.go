package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"golang.org/x/sys/unix"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Listing is the answer with the entries of a directory. Truncated is set if there are more.
type Listing struct {
	Items     []v1.File `json:"items"`
	Truncated bool      `json:"truncated"`
}

// fileOps has the operations on files in a sandbox, or in a workspace at rest.
type fileOps struct {
	read func(context.Context, caller.Principal, string, wire.FileRequest) (io.ReadCloser, v1.File, error)
	stat func(context.Context, caller.Principal, string, wire.FileRequest) (v1.File, error)
	list func(context.Context, caller.Principal, string, wire.FileRequest) ([]v1.File, bool, error)
}

func (s *Server) getFile(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	e := s.opts.Engine
	return fileOps{e.ReadFile, e.StatFile, e.ListFiles}.get(w, r, p, r.PathValue("id"))
}

func (s *Server) getWorkspaceFile(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	e := s.opts.Engine
	return fileOps{e.Workspaces.ReadFile, e.Workspaces.StatFile, e.Workspaces.ListFiles}.get(w, r, p, r.PathValue("name"))
}

func (f fileOps) get(w http.ResponseWriter, r *http.Request, p caller.Principal, of string) (err error) {
	q := queryOf(r, "path", "offset", "limit", "list", "stat")
	req, list, stat := q.file(), q.boolean("list"), q.boolean("stat")
	if list && stat {
		q.fail("stat", "and list are both true: use one of them")
	}
	if q.err != nil {
		return q.err
	}
	switch {
	case list:
		items, truncated, err := f.list(r.Context(), p, of, req)
		if err != nil {
			return err
		}
		return reply(w, http.StatusOK, Listing{Items: items, Truncated: truncated})
	case stat:
		info, err := f.stat(r.Context(), p, of, req)
		if err != nil {
			return err
		}
		return reply(w, http.StatusOK, info)
	}
	body, info, err := f.read(r.Context(), p, of, req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	w.Header().Set("Content-Type", formRaw)
	w.Header().Set("Orchestrator-Size", strconv.FormatInt(info.Size, 10))
	w.Header().Set("Orchestrator-Mode", info.Mode)
	w.WriteHeader(http.StatusOK)
	// A file can change while it is read, so no length is declared. A shortened answer ends without
	// the last chunk, which the client detects.
	_, err = io.Copy(w, body)
	return err
}

func (s *Server) putFile(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "path", "mode", "dir")
	req, dir := q.file(), q.boolean("dir")
	if q.err != nil {
		return q.err
	}
	req.Size, req.Recursive = max(0, r.ContentLength), true // creates parent directories, as in a workspace at rest
	id := r.PathValue("id")
	var info v1.File
	var err error
	if dir {
		req.Size = 0
		info, err = s.opts.Engine.MakeDir(r.Context(), p, id, req)
	} else {
		info, err = s.opts.Engine.WriteFile(r.Context(), p, id, req, r.Body)
	}
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, info)
}

func (s *Server) moveFile(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "path", "to")
	if q.err != nil {
		return q.err
	}
	info, err := s.opts.Engine.MoveFile(r.Context(), p, r.PathValue("id"), q.file())
	return replyOK(w, info, err)
}

func (s *Server) removeFile(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "path", "recursive")
	req := q.file()
	if q.err != nil {
		return q.err
	}
	return replyDone(w, s.opts.Engine.RemoveFile(r.Context(), p, r.PathValue("id"), req))
}

func (s *Server) createWorkspace(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.WorkspaceRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Workspaces.Create(r.Context(), p, req)
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, got)
}

func (s *Server) listWorkspaces(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	items, err := s.opts.Engine.Workspaces.List(r.Context(), p)
	return replyList(w, items, err)
}

func (s *Server) getWorkspace(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Workspaces.Get(r.Context(), p, r.PathValue("name"))
	return replyOK(w, got, err)
}

func (s *Server) deleteWorkspace(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	return replyDone(w, s.opts.Engine.Workspaces.Delete(r.Context(), p, r.PathValue("name")))
}

func (s *Server) putWorkspaceFile(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "path", "mode", "dir")
	req, dir := q.file(), q.boolean("dir")
	if q.err != nil {
		return q.err
	}
	name := r.PathValue("name")
	var info v1.File
	var err error
	if dir {
		info, err = s.opts.Engine.Workspaces.MakeDir(r.Context(), p, name, req)
	} else {
		req.Size = max(0, r.ContentLength)
		info, err = s.opts.Engine.Workspaces.WriteFile(r.Context(), p, name, req, r.Body)
	}
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, info)
}

func (s *Server) removeWorkspaceFile(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "path", "recursive")
	req := q.file()
	if q.err != nil {
		return q.err
	}
	return replyDone(w, s.opts.Engine.Workspaces.RemoveFile(r.Context(), p, r.PathValue("name"), req))
}

func (s *Server) spaceRoutes() []route {
	return []route{
		{
			method: "PATCH", path: "/v1/workspaces/{name}", direct: true, handle: s.resizeWorkspace,
			summary: "Change the size limit of a workspace", body: v1.WorkspaceResize{}, answer: v1.Workspace{},
		},
	}
}

func (s *Server) resizeWorkspace(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.WorkspaceResize
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Workspaces.Resize(r.Context(), p, r.PathValue("name"), req)
	return replyOK(w, got, err)
}

// isDiskFull reports whether a write failed because the target is full. Unlike with other limits,
// waiting does not help.
func isDiskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
