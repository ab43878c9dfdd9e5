// Package files is the part of the guest that serves files below /workspace and /tmp: read, write,
// edit, list, stat, mkdir, move, remove, glob and search. Each operation runs as the commands' user
// and stays inside the directory (see internal/safefile).
//
// The directory is opened for each operation and closed at its end, because its mount changes when
// the sandbox is leased. The package starts a few threads that run as the commands' user until
// Close. While a tree is removed or searched, a goroutine watches for the host to disconnect.
// Refusals are sent to the host as a Failure. An error of Handle means that the stream failed.
package files

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/filesync"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// IdleTime is how long a transfer may make no progress.
const IdleTime = 2 * time.Minute

// Options configures a Server. The zero value serves wire.Workspace and wire.Tmp as the commands'
// user.
type Options struct {
	// Dir is the directory that requests always call wire.Workspace. Tmp is the one that they call
	// wire.Tmp. Home, wire.Home by default, is where aliases are created.
	Dir, Tmp, Home string
	// UID and GID are the user for all file operations (default: runtime.CommandUID and
	// runtime.CommandGID). No operation runs as root.
	UID, GID int
}

// Server serves file operations. Its methods are safe for concurrent use.
type Server struct {
	opt     Options
	threads *threads
	buffers sync.Pool     // of *[]byte
	looking chan struct{} // running globs and searches
	alias   atomic.Pointer[[]alias]

	copying sync.Mutex     // held while the workspace is packed or unpacked
	known   filesync.Known // what was unpacked; protected by copying
}

// maxLooking limits concurrent globs and searches. Each uses some of the guest's memory and
// occupies one of the few threads.
const maxLooking = 2

// New returns a Server. It requires CAP_SETUID and CAP_SETGID; without them every operation fails.
func New(o Options) *Server {
	o.Dir, o.Tmp, o.Home = cmp.Or(o.Dir, wire.Workspace), cmp.Or(o.Tmp, wire.Tmp), cmp.Or(o.Home, wire.Home)
	if o.UID == 0 {
		o.UID = runtime.CommandUID
	}
	if o.GID == 0 {
		o.GID = runtime.CommandGID
	}
	s := &Server{opt: o, threads: newThreads(o.UID, o.GID), looking: make(chan struct{}, maxLooking)}
	s.buffers.New = func() any { b := make([]byte, wire.HeaderLen+wire.MaxFrame); return &b }
	return s
}

// Close ends the threads after their current operation. No Handle may be running.
func (s *Server) Close() { s.threads.close() }

// Handle executes a file operation and answers on c, which it does not close. When ctx ends, the
// operation stops as soon as possible. An operation that waits for the host stops when c is closed.
func (s *Server) Handle(ctx context.Context, op wire.Op, body json.RawMessage, c *wire.Conn) error {
	switch op {
	case wire.OpEdit, wire.OpGlob, wire.OpSearch:
		return s.handleTool(ctx, op, body, c)
	case wire.OpPack, wire.OpUnpack:
		return s.copyWorkspace(ctx, op, body, c)
	default:
	}
	var q wire.FileRequest
	if err := wire.Decode(body, &q); err != nil {
		return c.FailWith(err)
	}
	pl, err := s.place(&q)
	if err != nil {
		return refuse(c, err)
	}
	var reply any
	switch op {
	case wire.OpRead:
		return s.read(ctx, c, pl, q)
	case wire.OpWrite:
		return s.write(ctx, c, pl, q)
	case wire.OpRemove:
		err = s.watched(ctx, c, func(ctx context.Context) error {
			return s.withRoot(ctx, pl, func(r *safefile.Root) error { return r.Remove(ctx, q.Path, q.Recursive) })
		})
	default:
		err = s.withRoot(ctx, pl, func(r *safefile.Root) (err error) {
			reply, err = answer(ctx, r, pl, op, q)
			return err
		})
	}
	if err != nil {
		return refuse(c, err)
	}
	return c.Reply(reply)
}

// Become sets the user for all file operations. It must be called before the first one.
func (s *Server) Become(uid, gid int) error { return s.threads.become(uid, gid) }

// As runs f on a thread with the user's file permissions. An error means that f did not run.
func (s *Server) As(ctx context.Context, f func()) error { return s.threads.do(ctx, f) }

// withRoot opens the directory of pl and runs f, as the user.
func (s *Server) withRoot(ctx context.Context, pl place, f func(*safefile.Root) error) error {
	var err error
	run := func() {
		var r *safefile.Root
		if r, err = safefile.Open(pl.dir, safefile.Options{Prefix: pl.prefix, NoFollow: pl.noFollow}); err != nil {
			return
		}
		defer r.Close()
		err = pl.name(f(r))
	}
	if derr := s.threads.do(ctx, run); derr != nil {
		return derr
	}
	return err
}

// answer executes the operations that have one request and one reply.
func answer(ctx context.Context, r *safefile.Root, pl place, op wire.Op, q wire.FileRequest) (any, error) {
	var info safefile.Info
	var err error
	switch op {
	case wire.OpList:
		return list(ctx, r, pl, q)
	case wire.OpStat:
		info, err = r.Stat(q.Path)
	case wire.OpMkdir:
		info, err = r.Mkdir(q.Path, q.Mode)
	case wire.OpMove:
		info, err = r.Move(q.Path, q.To)
	default:
		return nil, wire.Failf(wire.InvalidArgument, "op", "unknown file operation %q", op)
	}
	return pl.info(info), err
}

// list limits the result by the size of the reply and by the number of entries, because names can
// be long, and longer in JSON.
func list(ctx context.Context, r *safefile.Root, pl place, q wire.FileRequest) (wire.Listing, error) {
	room := replyRoom
	items, more, err := r.List(ctx, q.Path, wire.MaxEntries, func(i safefile.Info) bool { return room.take(pl.info(i)) })
	l := wire.Listing{Items: make([]wire.FileInfo, len(items)), Truncated: more}
	for i := range items {
		l.Items[i] = pl.info(items[i])
	}
	return l, err
}

// room is the number of bytes left in a reply.
type room int

const replyRoom = room(wire.MaxHeader - 1024)

// take subtracts the size of v, one more item, and reports whether it fits.
func (r *room) take(v any) bool {
	b, err := json.Marshal(v)
	*r -= room(len(b) + 1)
	return err == nil && *r >= 0
}

// watched runs f with a context that ends when the host disconnects, because large trees take long.
func (s *Server) watched(ctx context.Context, c *wire.Conn, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if _, _, err := c.ReadFrame(); err != nil {
			cancel(fmt.Errorf("the host disconnected: %w", err))
		}
	}()
	err := f(ctx)
	_ = c.SetReadDeadline(time.Unix(1, 0))
	<-watched
	return err
}

// read sends a file. It opens the file as the user. An open file may be read on any thread.
func (s *Server) read(ctx context.Context, c *wire.Conn, pl place, q wire.FileRequest) error {
	var rd *safefile.Reader
	err := s.withRoot(ctx, pl, func(r *safefile.Root) (err error) {
		rd, err = r.Read(q.Path, q.Offset, q.Limit)
		return err
	})
	if err != nil {
		return refuse(c, err)
	}
	defer rd.Close()
	if err := c.WriteJSON(wire.KindStarted, pl.info(rd.Info())); err != nil {
		return err
	}
	buf := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buf)
	for {
		n, err := rd.Read((*buf)[wire.HeaderLen:])
		if n > 0 {
			if err := c.SetWriteDeadline(time.Now().Add(IdleTime)); err != nil {
				return err
			}
			if err := c.WriteRoom(wire.KindData, (*buf)[:wire.HeaderLen+n]); err != nil {
				return fmt.Errorf("send file: %w", err)
			}
		}
		if ctx.Err() != nil {
			return refuse(c, context.Cause(ctx))
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return refuse(c, err)
		}
	}
	info, err := rd.Stat()
	if err != nil {
		return refuse(c, err)
	}
	return c.Reply(pl.info(info))
}

// write receives a file. It accesses the disk only on the user's threads, so that blocks reserved
// for root are not given to a command. Waiting for the host occupies no thread.
func (s *Server) write(ctx context.Context, c *wire.Conn, pl place, q wire.FileRequest) error {
	var w *safefile.Writer
	err := s.withRoot(ctx, pl, func(r *safefile.Root) (err error) {
		w, err = r.Write(q.Path, safefile.WriteOptions{Mode: q.Mode, Size: q.Size, Parents: q.Recursive})
		return err
	})
	if err != nil {
		return refuse(c, err)
	}
	// drop removes an uncommitted file, even when ctx has ended. It runs before the answer: the
	// host may end the sandbox immediately after it, and the file would stay in the workspace.
	drop := func() { _ = s.threads.do(context.WithoutCancel(ctx), func() { _ = w.Close() }) }
	defer drop()
	for {
		if err := c.SetReadDeadline(time.Now().Add(IdleTime)); err != nil {
			return err
		}
		kind, payload, err := c.ReadFrame()
		if err != nil {
			return fmt.Errorf("receive file: %w", err)
		}
		var info safefile.Info
		step := func() { _, err = w.Write(payload) }
		switch kind {
		case wire.KindStdin:
		case wire.KindEOF:
			step = func() { info, err = w.Commit() }
		default:
			drop()
			return c.Fail(wire.InvalidArgument, "", fmt.Sprintf("unexpected frame of kind %q", byte(kind)))
		}
		if derr := s.threads.do(ctx, step); derr != nil {
			err = derr
		}
		if err != nil {
			drop()
			return refuse(c, err)
		}
		if kind == wire.KindEOF {
			return c.Reply(pl.info(info))
		}
	}
}

// refuse sends err as a Failure.
func refuse(c *wire.Conn, err error) error {
	if e, ok := errors.AsType[*safefile.Error](err); ok {
		return c.Fail(code(e.Class), e.Field, e.Message)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, errClosed) {
		return c.Fail(wire.Unavailable, "", err.Error())
	}
	return c.FailWith(err)
}

func code(class error) wire.Code {
	switch class {
	case errdefs.ErrInvalidArgument:
		return wire.InvalidArgument
	case errdefs.ErrNotFound:
		return wire.NotFound
	case errdefs.ErrAlreadyExists:
		return wire.AlreadyExists
	case errdefs.ErrFailedPrecondition:
		return wire.FailedPrecondition
	case errdefs.ErrResourceExhausted:
		return wire.ResourceExhausted
	case errdefs.ErrPermissionDenied:
		return wire.PermissionDenied
	case errdefs.ErrAborted:
		return wire.Unavailable
	}
	return wire.Internal
}
