package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// ReadFile opens a regular file; it is described as it was then. The reader
// ends with io.EOF only if every byte asked for came: one of a file that got
// shorter meanwhile, or of a guest that was lost, ends with another error. It
// is for one goroutine, has to be closed, and lasts as long as ctx does.
func (c *Client) ReadFile(ctx context.Context, q wire.FileRequest) (io.ReadCloser, wire.FileInfo, error) {
	s, err := c.begin(ctx, wire.OpRead, q)
	if err != nil {
		return nil, wire.FileInfo{}, err
	}
	s.within(c.times.short)
	info, err := s.opened(ctx)
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

// opened waits for the description of a file that was opened.
func (s *stream) opened(ctx context.Context) (wire.FileInfo, error) {
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
		return wire.FileInfo{}, s.broke("%v", err)
	}
	if info.Type != "file" {
		return wire.FileInfo{}, s.broke("it reads a file of type %s", info.Type)
	}
	return info, nil
}

// fileReader is a file on its way. Its context is that of ReadFile.
type fileReader struct {
	ctx context.Context
	*stream
	data []byte // came and was not handed out yet
	left int64  // is still to come
	err  error
	gone bool
}

// Read is that of io.Reader.
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

// WriteTo is that of io.WriterTo: frames go to w as they came.
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

// fill gets data, or the error that it ended with.
func (f *fileReader) fill() {
	for len(f.data) == 0 && f.err == nil {
		kind, payload, err := f.next(f.ctx)
		switch {
		case err != nil:
			f.err = err
		case kind == wire.KindData && int64(len(payload)) > f.left:
			f.err = f.broke("a file longer than announced")
		case kind == wire.KindData:
			f.data = payload
			f.left -= int64(len(payload))
		case kind == wire.KindFailure:
			f.err = f.failure(payload)
		case kind == wire.KindReply && f.left > 0:
			f.err = &Error{Code: wire.Unavailable, Message: fmt.Sprintf("the file became shorter while it was read: %d bytes are missing", f.left)}
		case kind == wire.KindReply:
			f.err = io.EOF
		default:
			f.err = f.unexpected(kind)
		}
	}
}

// Close lets go of the file. It may be called more than once, but not beside
// Read.
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

// WriteFile replaces a file by what r gives, at once when r has ended. If ctx
// ends or r fails the old one stays. A Read of r that blocks is left behind as
// with Exec.
func (c *Client) WriteFile(ctx context.Context, q wire.FileRequest, r io.Reader) (wire.FileInfo, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := c.begin(ctx, wire.OpWrite, q)
	if err != nil {
		return wire.FileInfo{}, err
	}
	defer s.close()
	go s.pump(r, s.eof, func(err error) { cancel(fmt.Errorf("%w: %w", errInput, err)) })
	payload, err := s.reply(ctx)
	if err != nil {
		return wire.FileInfo{}, err
	}
	info, err := decode[wire.FileInfo](s, payload)
	if err != nil {
		return wire.FileInfo{}, err
	}
	if err := checkFile(&info); err != nil {
		return wire.FileInfo{}, s.broke("%v", err)
	}
	return info, nil
}

// List describes what is in a folder. A listing that is truncated has some of
// it, and which is up to the filesystem.
func (c *Client) List(ctx context.Context, q wire.FileRequest) (wire.Listing, error) {
	raw, err := ask[struct {
		Items     json.RawMessage `json:"items"`
		Truncated bool            `json:"truncated"`
	}](ctx, c, wire.OpList, q, 0)
	if err != nil {
		return wire.Listing{}, err
	}
	items, err := list(raw.Items, wire.MaxEntries, checkFile)
	if err != nil {
		return wire.Listing{}, broke(wire.OpList, "%v", err)
	}
	return wire.Listing{Items: items, Truncated: raw.Truncated}, nil
}

// Stat describes a file, a link itself.
func (c *Client) Stat(ctx context.Context, q wire.FileRequest) (wire.FileInfo, error) {
	return askChecked(ctx, c, wire.OpStat, q, c.times.short, checkFile)
}

// Mkdir makes a folder and those above it; that it is there is no error.
func (c *Client) Mkdir(ctx context.Context, q wire.FileRequest) (wire.FileInfo, error) {
	return askChecked(ctx, c, wire.OpMkdir, q, c.times.short, checkFile)
}

// Move renames a file or folder and describes it at its new place.
func (c *Client) Move(ctx context.Context, q wire.FileRequest) (wire.FileInfo, error) {
	return askChecked(ctx, c, wire.OpMove, q, c.times.short, checkFile)
}

// Remove removes a file or folder. A large tree takes as long as it takes, but
// the guest stops when ctx ends.
func (c *Client) Remove(ctx context.Context, q wire.FileRequest) error {
	_, err := ask[struct{}](ctx, c, wire.OpRemove, q, 0)
	return err
}
