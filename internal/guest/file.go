package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// ReadFile opens a regular file and returns its description at that time. The reader returns io.EOF
// only after all requested bytes. If the file becomes shorter or the guest is lost, it returns
// another error. The reader is for one goroutine, must be closed, and fails when ctx ends.
func (c *Client) ReadFile(ctx context.Context, q wire.FileRequest) (io.ReadCloser, wire.FileInfo, error) {
	s, err := c.begin(ctx, wire.OpRead, q)
	if err != nil {
		return nil, wire.FileInfo{}, err
	}
	s.within(c.times.short)
	info, err := s.awaitFile(ctx)
	if err != nil {
		s.close()
		return nil, wire.FileInfo{}, err
	}
	s.within(0)
	left := max(info.Size-q.Offset, 0)
	if q.Limit > 0 {
		left = min(left, q.Limit)
	}
	return &fileReader{ctx: ctx, stream: s, left: left}, info, nil
}

// awaitFile waits for the description of an opened file.
func (s *stream) awaitFile(ctx context.Context) (wire.FileInfo, error) {
	kind, payload, err := s.next(ctx)
	switch {
	case err != nil:
		return wire.FileInfo{}, err
	case kind == wire.KindFailure:
		return wire.FileInfo{}, s.failure(payload)
	case kind != wire.KindStarted:
		return wire.FileInfo{}, s.unexpected(kind)
	}
	info, err := decode[wire.FileInfo](s, payload)
	if err != nil {
		return wire.FileInfo{}, err
	}
	if err := checkFile(&info); err != nil {
		return wire.FileInfo{}, s.protocolError("%v", err)
	}
	if info.Type != "file" {
		return wire.FileInfo{}, s.protocolError("opened a file of type %s", info.Type)
	}
	return info, nil
}

// fileReader reads a file from the guest. Its context is that of ReadFile.
type fileReader struct {
	ctx context.Context
	*stream
	data []byte // received and not yet returned
	left int64  // bytes not yet received
	err  error
	gone bool
}

// Read implements io.Reader.
func (f *fileReader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	f.fill()
	if len(f.data) == 0 {
		return 0, f.err
	}
	n := copy(b, f.data)
	f.data = f.data[n:]
	return n, nil
}

// WriteTo implements io.WriterTo. It writes each frame to w without copying.
func (f *fileReader) WriteTo(w io.Writer) (int64, error) {
	var all int64
	for {
		f.fill()
		if len(f.data) == 0 {
			if f.err == io.EOF {
				return all, nil
			}
			return all, f.err
		}
		n, err := w.Write(f.data)
		all += int64(n)
		f.data = f.data[min(max(n, 0), len(f.data)):]
		if err == nil && len(f.data) > 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return all, err
		}
	}
}

// fill waits for data or the final error.
func (f *fileReader) fill() {
	for len(f.data) == 0 && f.err == nil {
		kind, payload, err := f.next(f.ctx)
		switch {
		case err != nil:
			f.err = err
		case kind == wire.KindData && int64(len(payload)) > f.left:
			f.err = f.protocolError("the file is longer than announced")
		case kind == wire.KindData:
			f.data = payload
			f.left -= int64(len(payload))
		case kind == wire.KindFailure:
			f.err = f.failure(payload)
		case kind == wire.KindReply && f.left > 0:
			f.err = &Error{Code: wire.Unavailable,
				Message: fmt.Sprintf("the file became shorter during the read: %d bytes are missing", f.left)}
		case kind == wire.KindReply:
			f.err = io.EOF
		default:
			f.err = f.unexpected(kind)
		}
	}
}

// Close ends the read. It can be called several times, but not concurrently with Read.
func (f *fileReader) Close() error {
	if !f.gone {
		f.gone, f.data = true, nil
		if f.err == nil {
			f.err = io.ErrClosedPipe
		}
		f.close()
	}
	return nil
}

// WriteFile atomically replaces a file with the content of r, after r has ended. If ctx ends or r
// fails, the old file remains. A blocked Read of r is left behind, as in Exec.
func (c *Client) WriteFile(ctx context.Context, q wire.FileRequest, r io.Reader) (wire.FileInfo, error) {
	return upload(ctx, c, wire.OpWrite, q, r, checkFile)
}

// upload sends a request and then r, and checks the answer. If ctx ends or r fails, it returns
// without waiting for a blocked Read of r.
func upload[T any](ctx context.Context, c *Client, op wire.Op, q any, r io.Reader, check func(*T) error) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var zero T
	s, err := c.begin(ctx, op, q)
	if err != nil {
		return zero, err
	}
	defer s.close()
	go s.pump(r, s.eof, func(err error) { cancel(fmt.Errorf("%w: %w", errInput, err)) })
	payload, err := s.reply(ctx)
	if err != nil {
		return zero, err
	}
	v, err := decode[T](s, payload)
	if err != nil {
		return zero, err
	}
	if err := check(&v); err != nil {
		return zero, s.protocolError("%v", err)
	}
	return v, nil
}

// List describes the content of a directory. A truncated listing contains an arbitrary part of it.
func (c *Client) List(ctx context.Context, q wire.FileRequest) (wire.Listing, error) {
	return askListing(ctx, c, wire.OpList, q, wire.MaxEntries)
}

// askListing asks for at most limit files.
func askListing(ctx context.Context, c *Client, op wire.Op, q any, limit int) (wire.Listing, error) {
	raw, err := ask[struct {
		Items     json.RawMessage `json:"items"`
		Truncated bool            `json:"truncated"`
	}](ctx, c, op, q, 0)
	if err != nil {
		return wire.Listing{}, err
	}
	items, err := list(raw.Items, limit, checkFile)
	if err != nil {
		return wire.Listing{}, protocolError(op, "%v", err)
	}
	return wire.Listing{Items: items, Truncated: raw.Truncated}, nil
}

// Stat describes a file. It does not follow links.
func (c *Client) Stat(ctx context.Context, q wire.FileRequest) (wire.FileInfo, error) {
	return askChecked(ctx, c, wire.OpStat, q, c.times.short, checkFile)
}

// Mkdir creates a directory and its parents. If it exists, Mkdir succeeds.
func (c *Client) Mkdir(ctx context.Context, q wire.FileRequest) (wire.FileInfo, error) {
	return askChecked(ctx, c, wire.OpMkdir, q, c.times.short, checkFile)
}

// Move renames a file or directory and returns its new description.
func (c *Client) Move(ctx context.Context, q wire.FileRequest) (wire.FileInfo, error) {
	return askChecked(ctx, c, wire.OpMove, q, c.times.short, checkFile)
}

// Remove removes a file or directory. It has no time limit for large trees, but the guest stops
// when ctx ends.
func (c *Client) Remove(ctx context.Context, q wire.FileRequest) error {
	_, err := ask[struct{}](ctx, c, wire.OpRemove, q, 0)
	return err
}
