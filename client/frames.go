package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Kinds of frames. A frame is one byte of kind, four bytes of big-endian length, and the payload.
const (
	frameStarted = 'S' // {"id": …}
	frameStdout  = '1'
	frameStderr  = '2'
	frameEnd     = 'E' // ExecResult
	frameProblem = 'P' // Problem
)

// maxDocument bounds a JSON payload. Output is copied through a buffer of dataBuffer bytes,
// whatever length its frame states.
const (
	maxDocument = 1 << 20
	dataBuffer  = 256 << 10
)

// writerError is an error of a writer that the caller provided.
type writerError struct {
	stream string
	err    error
}

func (e *writerError) Error() string { return "write " + e.stream + ": " + e.err.Error() }
func (e *writerError) Unwrap() error { return e.err }

// readFrames copies a command's output until the end frame and returns its result. A stream without
// an end frame was cut.
func (c *Client) readFrames(ctx context.Context, r io.Reader, s Streams) (v1.ExecResult, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	buf := make([]byte, dataBuffer)
	for {
		var head [5]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return v1.ExecResult{}, c.connectionError(ctx, err)
		}
		kind, n := head[0], int64(binary.BigEndian.Uint32(head[1:]))
		var err error
		switch kind {
		case frameStdout:
			err = copyFrame("stdout", s.Stdout, in, n, buf)
		case frameStderr:
			err = copyFrame("stderr", s.Stderr, in, n, buf)
		case frameStarted:
			var started struct {
				ID string `json:"id"`
			}
			if err = readDocument(in, n, &started); err == nil && s.Started != nil {
				s.Started(started.ID)
			}
		case frameEnd:
			var end v1.ExecResult
			if err = readDocument(in, n, &end); err == nil && end.Ending == "" {
				err = errors.New("an end without an ending")
			}
			if err == nil {
				if s.Stdin == nil {
					// Read the end of the body so that the connection can be reused.
					_, _ = io.CopyN(io.Discard, in, 1)
				}
				return end, nil
			}
		case frameProblem:
			var p v1.Problem
			if err = readDocument(in, n, &p); err == nil {
				return v1.ExecResult{}, newProblemError(&p)
			}
		default:
			err = fmt.Errorf("frame of unknown kind %q", kind)
		}
		if w, ok := errors.AsType[*writerError](err); ok {
			return v1.ExecResult{}, w
		}
		if err != nil {
			return v1.ExecResult{}, c.connectionError(ctx, err)
		}
	}
}

// copyFrame copies n bytes to w as they arrive.
func copyFrame(stream string, w io.Writer, in io.Reader, n int64, buf []byte) error {
	for n > 0 {
		k, err := in.Read(buf[:min(n, int64(len(buf)))])
		n -= int64(k)
		if k > 0 && w != nil {
			if _, err := w.Write(buf[:k]); err != nil {
				return &writerError{stream, err}
			}
		}
		if err != nil && n > 0 {
			return err
		}
	}
	return nil
}

func readDocument(in io.Reader, n int64, v any) error {
	if n > maxDocument {
		return fmt.Errorf("a document of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(in, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
