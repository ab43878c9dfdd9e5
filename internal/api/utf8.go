package api

import (
	"encoding/base64"
	"slices"
	"unicode/utf8"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// eventWriter sends events of one output stream. If a piece ends inside a character, the partial
// character waits for the next piece. Data that is not valid UTF-8 is sent as base64.
type eventWriter struct {
	e    *eventStream
	kind string
	rest []byte
}

// Write sends one event, or none while it has only part of a character.
func (w *eventWriter) Write(p []byte) (int, error) {
	data := p
	if len(w.rest) > 0 {
		data = slices.Concat(w.rest, p)
		w.rest = nil
	}
	whole := data[:len(data)-incompleteSuffix(data)]
	w.rest = append([]byte(nil), data[len(whole):]...)
	if len(whole) == 0 {
		return len(p), nil
	}
	return len(p), w.e.send(outputPiece(w.kind, whole))
}

// flush sends a partial character that was not completed.
func (w *eventWriter) flush() error {
	if len(w.rest) == 0 {
		return nil
	}
	rest := w.rest
	w.rest = nil
	return w.e.send(outputPiece(w.kind, rest))
}

func outputPiece(kind string, b []byte) v1.Event {
	if utf8.Valid(b) {
		return v1.Event{Type: kind, Data: string(b)}
	}
	return v1.Event{Type: kind, Base64: base64.StdEncoding.EncodeToString(b)}
}

// incompleteSuffix returns the length of the incomplete character at the end of b.
func incompleteSuffix(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		c := b[len(b)-i]
		if !utf8.RuneStart(c) {
			continue
		}
		if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
			return i
		}
		return 0
	}
	return 0
}
