package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const eventsType = "text/event-stream"

// maxEvent bounds one server-sent event in bytes. A tool's result with both its output streams is
// one event.
const maxEvent = 1 << 30

// readEvents calls event for each server-sent event, until event returns last or an error. A stream
// that ends earlier is reported as ErrLost.
func (c *Client) readEvents(
	ctx context.Context,
	k *call,
	event func(kind string, data []byte) (last bool, err error),
) error {
	k.accept = eventsType
	resp, err := c.send(ctx, k)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if m, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || m != eventsType {
		return fmt.Errorf("%w: the answer is %q and not a stream of events", ErrLost, resp.Header.Get("Content-Type"))
	}
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	kind, data := "", []byte(nil)
	for {
		line, err := readLine(in, maxEvent-len(data))
		if err != nil {
			return c.connectionError(ctx, err)
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(line) == 0 && data != nil:
			if last, err := c.dispatchEvent(ctx, kind, data, event); last || err != nil {
				return err
			}
			kind, data = "", nil
		case string(name) == "event":
			kind = string(value)
		case string(name) == "data" && data == nil:
			data = append([]byte{}, value...)
		case string(name) == "data":
			data = append(append(data, '\n'), value...)
		}
	}
}

func (c *Client) dispatchEvent(
	ctx context.Context,
	kind string,
	data []byte,
	event func(string, []byte) (bool, error),
) (last bool, err error) {
	if kind != "problem" {
		return event(kind, data)
	}
	var p v1.Problem
	if err := json.Unmarshal(data, &p); err != nil {
		return true, c.connectionError(ctx, fmt.Errorf("invalid JSON in problem: %w", err))
	}
	return true, newProblemError(&p)
}

// readLine reads one line of up to limit bytes, and returns it without its line break.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		piece, err := in.ReadSlice('\n')
		line = append(line, piece...)
		if len(line) > limit {
			return nil, errors.New("an event that is too long")
		}
		if err == nil {
			return bytes.TrimRight(line, "\r\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}
