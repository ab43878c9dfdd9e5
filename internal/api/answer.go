package api

import (
	"encoding/json"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

// answer is the ResponseWriter of every handler.
type answer struct {
	*httpguard.Answer
	request string // the id of the request
	// redact returns the part of an error that the caller may see.
	redact func(error) error
}

// sendCounted sends p as the whole body of an answer: see httpguard.Answer.Send.
func sendCounted(w http.ResponseWriter, status int, form string, p []byte) error {
	if a, ok := w.(*answer); ok {
		return a.Send(status, form, p)
	}
	return httpguard.NewAnswer(w, takeTime).Send(status, form, p)
}

// reply sends v as JSON: see sendCounted.
func reply(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return sendCounted(w, status, formJSON, b)
}

// replyOK answers with v, or returns err.
func replyOK(w http.ResponseWriter, v any, err error) error {
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, v)
}

// replyDone answers without a body, or returns err.
func replyDone(w http.ResponseWriter, err error) error {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// replyList answers with a list, or returns err.
func replyList[T any](w http.ResponseWriter, items []T, err error) error {
	if err != nil {
		return err
	}
	if items == nil {
		items = []T{}
	}
	return reply(w, http.StatusOK, v1.List[T]{Items: items})
}
