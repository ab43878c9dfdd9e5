package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// maxBatch bounds the messages of a batch, which only versions before
// 2025-06-18 have. Each is answered at once, and all answers are held until the
// client has taken them.
const maxBatch = 64

// checkBatch refuses a batch of too many messages. It reads a batch whole, and
// of anything else the space before it; r's body is what it was otherwise.
func checkBatch(r *http.Request) error {
	body := bufio.NewReader(r.Body)
	r.Body = readCloser{body, r.Body}
	for {
		c, err := body.ReadByte()
		if err != nil {
			return nil // the library says what is wrong with it
		}
		if c == ' ' || c == '\t' || c == '\r' || c == '\n' {
			continue
		}
		if err := body.UnreadByte(); err != nil {
			return err
		}
		if c != '[' {
			return nil
		}
		break
	}
	whole, err := io.ReadAll(io.LimitReader(body, maxMessage+1))
	if err != nil {
		return fmt.Errorf("read the batch: %w", err)
	}
	r.Body = readCloser{io.MultiReader(bytes.NewReader(whole), body), r.Body}
	d := json.NewDecoder(bytes.NewReader(whole))
	if _, err := d.Token(); err != nil {
		return nil // likewise
	}
	for n := 0; d.More(); n++ {
		if n == maxBatch {
			return fmt.Errorf("the batch has over %d messages: send them one by one", maxBatch)
		}
		var message json.RawMessage
		if err := d.Decode(&message); err != nil {
			return nil // likewise
		}
	}
	return nil
}

type readCloser struct {
	io.Reader
	io.Closer
}
