package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// maxBatch bounds the messages of a batch, which only revisions before 2025-06-18 have. Each
// message is answered at once, and all answers are held until the client has read them.
const maxBatch = 64

// maxOther bounds a message that is not a tool call, in bytes. The library queues such messages
// without a bound, and after the HTTP request has ended.
const maxOther = 2 * maxParams

// messages counts what a body contains. A single message that was not read counts as a request.
type messages struct {
	read     bool // the whole body
	requests int
	calls    int // tool calls, if read
}

// checkMessages returns an error for a batch with too many messages, and for a large message that
// is not a tool call. It reads batches and large bodies completely, and the leading space of any
// other body. Afterwards r's body can be read from its start.
//
// A body with a method Bytes, which returns all of it, is not copied.
func checkMessages(r *http.Request) (m messages, err error) {
	var src io.Reader = r.Body
	if in, ok := r.Body.(*intake); ok {
		src = in.ReadCloser
	}
	held, isHeld := src.(interface{ Bytes() []byte })
	var whole []byte
	body := bufio.NewReader(r.Body)
	if isHeld {
		whole = held.Bytes()
		body = bufio.NewReader(bytes.NewReader(whole))
	} else {
		r.Body = readCloser{body, r.Body}
	}
	first, err := firstByte(body)
	batch := first == '['
	if err != nil || !batch && r.ContentLength >= 0 && r.ContentLength <= maxHead {
		return messages{requests: 1}, nil //nolint:nilerr // the library reports the error
	}
	if !isHeld {
		if whole, err = io.ReadAll(io.LimitReader(body, maxMessage+1)); err != nil {
			return m, fmt.Errorf("read the body: %w", err)
		}
		r.Body = readCloser{io.MultiReader(bytes.NewReader(whole), body), r.Body}
	}
	m.read = true
	err = m.addAll(whole, batch)
	return m, err
}

// addAll counts the messages of a body.
func (m *messages) addAll(whole []byte, batch bool) error {
	if !batch {
		return m.add(whole)
	}
	d := json.NewDecoder(bytes.NewReader(whole))
	if _, err := d.Token(); err != nil {
		return nil //nolint:nilerr // the library reports the error
	}
	for n := 0; d.More(); n++ {
		if n == maxBatch {
			return fmt.Errorf("the batch has over %d messages: send them one by one", maxBatch)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil //nolint:nilerr // the library reports the error
		}
		if err := m.add(raw); err != nil {
			return err
		}
	}
	return nil
}

// firstByte skips white space and returns the next byte without reading it.
func firstByte(body *bufio.Reader) (byte, error) {
	for {
		c, err := body.ReadByte()
		if err != nil {
			return 0, err
		}
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c, body.UnreadByte()
		}
	}
}

// add counts a message, or returns an error if it is too large. The library reports other errors.
func (m *messages) add(raw []byte) error {
	var fields map[string]member // unlike a struct, a map tells "method" from "Method", as the library does
	var method string
	if json.Unmarshal(raw, &fields) != nil || json.Unmarshal(fields["method"], &method) != nil {
		return nil //nolint:nilerr // see above
	}
	id := string(fields["id"])
	isRequest := id != "" && id != "null"
	isCall := method == methodCall
	if isRequest {
		m.requests++
	}
	if isCall {
		m.calls++
	}
	if len(raw) > maxOther && !(isRequest && isCall) {
		return fmt.Errorf("message %s is over %d bytes: only requests of %s may be larger", quote(method, maxName),
			maxOther, methodCall)
	}
	return nil
}

// member is the value of an object's member as JSON, or null if it is long.
type member []byte

// UnmarshalJSON implements json.Unmarshaler.
func (m *member) UnmarshalJSON(b []byte) error {
	if *m = []byte("null"); len(b) <= maxHead {
		*m = bytes.Clone(b)
	}
	return nil
}

type readCloser struct {
	io.Reader
	io.Closer
}
