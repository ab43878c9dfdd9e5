package mcp

import (
	"encoding/json"
	"net/http"
	"strings"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// problemCode returns the code of an HTTP status, as the other routes of the service use it.
func problemCode(status int) string {
	switch status {
	case http.StatusForbidden:
		return "permission_denied"
	case http.StatusNotFound:
		return "not_found"
	case http.StatusMethodNotAllowed, http.StatusConflict:
		return "failed_precondition"
	case http.StatusInternalServerError:
		return "internal"
	}
	return "invalid_argument"
}

// problemWriter answers errors in the form of the other routes. The library and http.Error write
// them as text, in one piece.
type problemWriter struct {
	http.ResponseWriter
	status int // of an error whose text was not written yet
}

// WriteHeader sets the type of an error.
func (w *problemWriter) WriteHeader(status int) {
	h := w.Header()
	if status >= http.StatusBadRequest && strings.HasPrefix(h.Get("Content-Type"), "text/plain") {
		h.Set("Content-Type", "application/problem+json")
		h.Del("Content-Length")
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write writes a piece of an answer, or the text of an error as a problem.
func (w *problemWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		return w.ResponseWriter.Write(p)
	}
	b, err := json.Marshal(v1.Problem{
		Type: "about:blank", Title: http.StatusText(w.status), Status: w.status, Code: problemCode(w.status),
		Detail: strings.TrimSpace(string(p)), RequestID: w.Header().Get("X-Request-Id"),
	})
	w.status = 0
	if err != nil {
		return 0, err
	}
	if _, err := w.ResponseWriter.Write(b); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Unwrap returns the wrapped ResponseWriter, for http.ResponseController.
func (w *problemWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
