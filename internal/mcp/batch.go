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

// checkBatch returns an error for a batch with too many messages, and otherwise the number of its
// tool calls. It reads a batch completely, and the leading space of any other body. Afterwards r's
// body can be read from its start.
func checkBatch(r *http.Request) (calls int, err error) {
	body := bufio.NewReader(r.Body)
	r.Body = readCloser{body, r.Body}
	for {
		c, err := body.ReadByte()
		if err != nil {
			return 0, nil //nolint:nilerr // the library reports the error
		}
		if c == ' ' || c == '\t' || c == '\r' || c == '\n' {
			continue
		}
		if err := body.UnreadByte(); err != nil {
			return 0, err
		}
		if c != '[' {
			return 0, nil
		}
		break
	}
	whole, err := io.ReadAll(io.LimitReader(body, maxMessage+1))
	if err != nil {
		return 0, fmt.Errorf("read the batch: %w", err)
	}
	r.Body = readCloser{io.MultiReader(bytes.NewReader(whole), body), r.Body}
	d := json.NewDecoder(bytes.NewReader(whole))
	if _, err := d.Token(); err != nil {
		return 0, nil //nolint:nilerr // the library reports the error
	}
	for n := 0; d.More(); n++ {
		if n == maxBatch {
			return calls, fmt.Errorf("the batch has over %d messages: send them one by one", maxBatch)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return calls, nil //nolint:nilerr // the library reports the error
		}
		var message struct {
			Method string `json:"method"`
		}
		if json.Unmarshal(raw, &message) == nil && message.Method == methodCall {
			calls++
		}
	}
	return calls, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}
