package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// The protocol wants no answer to a request that its client has cancelled, but the library answers
// every request. A cancelled one is therefore answered with errCancelled, and that answer is left
// out where it would be written.
var errCancelled = &jsonrpc.Error{Code: -32800, Message: "cancelled by the client"}

// cancelledAnswers are the ends of the messages to leave out. No other message ends like one of
// them: it would have more braces. The second one is the library's own, for a request that was
// cancelled before its handler began.
var cancelledAnswers = [][]byte{
	[]byte(`,"error":{"code":-32800,"message":"cancelled by the client"}}`),
	[]byte(`,"error":{"code":0,"message":"context canceled"}}`),
}

// unanswered replaces the error of a request that its client has cancelled. ctx is the library's
// context of the request, which ends when the client cancels it or the session ends. Errors without
// a code get one.
func unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errCancelled
	}
	if _, coded := errors.AsType[*jsonrpc.Error](err); err != nil && !coded {
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	}
	return err
}

// isCancelled reports whether msg answers a cancelled request.
func isCancelled(msg []byte) bool {
	for _, end := range cancelledAnswers {
		if bytes.HasSuffix(msg, end) {
			return true
		}
	}
	return false
}

// withoutCancelled returns msg, a message or a batch of answers, without answers to cancelled
// requests. It returns nil if nothing is left.
func withoutCancelled(msg []byte) []byte {
	if isCancelled(msg) {
		return nil
	}
	var batch []json.RawMessage
	if len(msg) == 0 || msg[0] != '[' || json.Unmarshal(msg, &batch) != nil {
		return msg
	}
	kept := make([]json.RawMessage, 0, len(batch))
	for _, one := range batch {
		if !isCancelled(one) {
			kept = append(kept, one)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	out, err := json.Marshal(kept)
	if err != nil {
		return msg
	}
	return out
}

// lineWriter leaves answers to cancelled requests out of a stream of lines. The library writes a
// whole line at once.
type lineWriter struct{ io.WriteCloser }

// Write implements io.Writer.
func (w lineWriter) Write(p []byte) (int, error) {
	line := bytes.TrimSuffix(p, []byte("\n"))
	kept := withoutCancelled(line)
	switch {
	case kept == nil:
		return len(p), nil
	case len(kept) == len(line):
		return w.WriteCloser.Write(p)
	}
	if _, err := w.WriteCloser.Write(append(kept, '\n')); err != nil {
		return 0, err
	}
	return len(p), nil
}

// eventWriter leaves answers to cancelled requests out of a stream of server-sent events. The
// library writes a whole event at once.
type eventWriter struct{ http.ResponseWriter }

// Write implements io.Writer.
func (w eventWriter) Write(p []byte) (int, error) {
	if isCancelled(bytes.TrimSuffix(p, []byte("\n\n"))) {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap returns the wrapped ResponseWriter, for http.ResponseController.
func (w eventWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
