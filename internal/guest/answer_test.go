package guest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"pgregory.net/rapid"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/files"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

var (
	shellX = wire.Shell{ID: "x", Argv: []string{"a"}, Stdout: wire.Span{Start: 1, End: 2}}
	fileX  = wire.FileInfo{Name: "f", Path: "d/f", Type: "file", Size: 4, Mode: 0o644}
)

// calls returns all operations with a single reply, and simple calls of the others.
func calls(ctx context.Context, c *Client) map[string]func() error {
	q := wire.FileRequest{Path: "d/f"}
	return map[string]func() error{
		"ping":   func() error { _, err := c.Ping(ctx); return err },
		"claim":  func() error { return c.Claim(ctx, wire.Claim{Lease: "l"}) },
		"end":    func() error { return c.End(ctx) },
		"exec":   func() error { _, err := c.Exec(ctx, command(), IO{}); return err },
		"start":  func() error { _, err := c.Start(ctx, command()); return err },
		"shell":  func() error { _, err := c.Shell(ctx, "x"); return err },
		"shells": func() error { _, err := c.Shells(ctx); return err },
		"kill":   func() error { _, err := c.Kill(ctx, wire.Kill{ID: "x"}); return err },
		"signal": func() error { return c.Signal(ctx, wire.Signal{ID: "x"}) },
		"forget": func() error { return c.Forget(ctx, "x") },
		"input":  func() error { return c.Input(ctx, "x", strings.NewReader("in"), true) },
		"output": func() error {
			_, err := c.Output(ctx, wire.Output{ID: "x"}, func(int64, []byte) error { return nil })
			return err
		},
		"read": func() error {
			r, _, err := c.ReadFile(ctx, q)
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(io.Discard, r)
			return err
		},
		"write":  func() error { _, err := c.WriteFile(ctx, q, strings.NewReader("in")); return err },
		"list":   func() error { _, err := c.List(ctx, q); return err },
		"stat":   func() error { _, err := c.Stat(ctx, q); return err },
		"mkdir":  func() error { _, err := c.Mkdir(ctx, q); return err },
		"move":   func() error { _, err := c.Move(ctx, q); return err },
		"remove": func() error { return c.Remove(ctx, q) },
		"edit":   func() error { _, err := c.EditFile(ctx, wire.EditRequest{FileRequest: q}); return err },
		"glob":   func() error { _, err := c.Glob(ctx, wire.GlobRequest{FileRequest: q}); return err },
		"search": func() error { _, err := c.Search(ctx, wire.SearchRequest{FileRequest: q}); return err },
	}
}

func TestInvalidAnswerIsLost(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"nothing": {}, "half a header": {'R', 0}, "garbage": []byte("garbage, and more of it"),
		"a huge reply": {'R', 255, 255, 255, 255},
		"no JSON":      frame(wire.KindReply, "{"), "no object": frame(wire.KindReply, `"x"`),
		"a number": frame(wire.KindReply, `7`),
		"stdin":    frame(wire.KindStdin, "x"), "half a failure": frame(wire.KindFailure, `{"code":`),
	} {
		c := New(sayer{t, bytes})
		for op, call := range calls(soon(t), c) {
			if err := call(); !errors.Is(err, ErrLost) || !errdefs.IsUnavailable(err) {
				t.Errorf("%s after %s: %v, want %v and Unavailable", op, name, err, ErrLost)
			}
		}
	}
}

// sayer is an Opener whose guest sends the same bytes on each stream.
type sayer struct {
	t   testing.TB
	say []byte
}

func (s sayer) Open(context.Context) (net.Conn, error) {
	host, guest := socketPair(s.t)
	if len(s.say) > 64<<10 {
		s.say = s.say[:64<<10] // fits into a socket's buffer
	}
	_, err := guest.Write(s.say)
	_ = guest.(*net.UnixConn).CloseWrite()
	go func() {
		defer guest.Close()
		_, _ = io.Copy(io.Discard, guest) // ends when the host hangs up
	}()
	return host, err
}

func TestAnswersAreValidated(t *testing.T) {
	reply := func(v any) []byte { return jsonFrame(wire.KindReply, v) }
	file := func(change func(*wire.FileInfo)) []byte { i := fileX; change(&i); return reply(i) }
	shell := func(change func(*wire.Shell)) []byte { s := shellX; change(&s); return reply(s) }
	opened := jsonFrame(wire.KindStarted, fileX)
	end := func(next int64) []byte { return reply(wire.OutputEnd{Next: next, Shell: shellX}) }
	chunk := func(at int64) []byte { return jsonFrame(wire.KindChunk, wire.Chunk{Offset: at}) }
	data := frame(wire.KindData, "data")
	for name, c := range map[string]struct {
		op    string
		bytes []byte
	}{
		"a name with a slash":   {"stat", file(func(i *wire.FileInfo) { i.Name = "../f" })},
		"a name that leads up":  {"stat", file(func(i *wire.FileInfo) { i.Name = ".." })},
		"no name":               {"mkdir", file(func(i *wire.FileInfo) { i.Name = "" })},
		"an absolute path":      {"move", file(func(i *wire.FileInfo) { i.Path = "/etc/passwd" })},
		"a path that leads out": {"write", file(func(i *wire.FileInfo) { i.Path = "a/../../b" })},
		"a negative size":       {"stat", file(func(i *wire.FileInfo) { i.Size = -1 })},
		"an unknown type":       {"stat", file(func(i *wire.FileInfo) { i.Type = "door" })},
		"a mode with a type":    {"stat", file(func(i *wire.FileInfo) { i.Mode = 0o100644 })},
		"a bad entry in a list": {"list", frame(wire.KindReply, `{"items":[{}]}`)},
		"too long a list": {"list",
			frame(wire.KindReply, `{"items":[`+strings.Repeat(`{"name":"a","path":"a","type":"dir"},`, wire.MaxEntries)+`{}]}`)},
		"a path beside /tmp": {"stat", file(func(i *wire.FileInfo) { i.Path = "/tmpfile" })},
		"a path out of /tmp": {"stat", file(func(i *wire.FileInfo) { i.Path = "/tmp/../etc" })},
		"an edit of nothing": {"edit", reply(wire.EditReply{Info: fileX})},
		"a bad file edited":  {"edit", frame(wire.KindReply, `{"count":1,"line":1}`)},
		"a bad name found":   {"glob", frame(wire.KindReply, `{"items":[{}]}`)},
		"too many names found": {"glob",
			frame(wire.KindReply, `{"items":[`+strings.Repeat(`{"name":"a","path":"a","type":"dir"},`, wire.MaxMatches)+`{}]}`)},
		"a match without a line":   {"search", frame(wire.KindReply, `{"matches":[{"path":"a","column":1}]}`)},
		"a match in another place": {"search", frame(wire.KindReply, `{"matches":[{"path":"../a","line":1,"column":1}]}`)},
		"a match of a long line": {"search",
			reply(wire.SearchReply{Matches: []wire.Match{{Path: "a", Line: 1, Column: 1,
				Text: strings.Repeat("x", 4*wire.MaxLineBytes)}}})},
		"a match among many lines": {"search",
			reply(wire.SearchReply{Matches: []wire.Match{{Path: "a", Line: 1, Column: 1, After: make([]string, 11)}}})},
		"a negative count of files": {"search", frame(wire.KindReply, `{"files":-1}`)},
		"another shell":             {"shell", shell(func(s *wire.Shell) { s.ID = "y" })},
		"another shell started":     {"start", shell(func(s *wire.Shell) { s.ID = "y" })},
		"output before its start":   {"kill", shell(func(s *wire.Shell) { s.Stdout = wire.Span{Start: 2, End: 1} })},
		"an odd ending of a shell":  {"shell", shell(func(s *wire.Shell) { s.Result = &runtime.Result{Ending: "x"} })},
		"too many shells": {"shells",
			frame(wire.KindReply, "["+strings.Repeat(`{"id":"a"},`, wire.MaxShells)+`{"id":"a"}]`)},
		"a list that is none":       {"shells", frame(wire.KindReply, `{}`)},
		"data without a chunk":      {"output", data},
		"two chunks":                {"output", append(chunk(0), chunk(0)...)},
		"an end in a chunk":         {"output", append(chunk(0), end(0)...)},
		"output that goes back":     {"output", bytes.Join([][]byte{chunk(5), data, chunk(8)}, nil)},
		"an end before the data's":  {"output", bytes.Join([][]byte{chunk(5), data, end(8)}, nil)},
		"a negative offset":         {"output", append(chunk(-1), data...)},
		"an offset that overflows":  {"output", append(chunk(1<<63-1), data...)},
		"another shell's output":    {"output", reply(wire.OutputEnd{Shell: wire.Shell{ID: "y"}})},
		"a folder that is read":     {"read", jsonFrame(wire.KindStarted, wire.FileInfo{Name: "d", Path: "d", Type: "dir"})},
		"a file longer than itself": {"read", bytes.Join([][]byte{opened, data, data}, nil)},
		"a file twice":              {"read", append(bytes.Clone(opened), opened...)},
		"data before its file":      {"read", data},
	} {
		client := talk(t, &peer{script: hold(c.bytes)})
		if err := calls(soon(t), client)[c.op](); !errors.Is(err, ErrProtocol) || !errors.Is(err, ErrLost) {
			t.Errorf("answer with %s: %v, want %v and %v", name, err, ErrProtocol, ErrLost)
		}
	}
}

func TestReadFileTruncatedIsAnError(t *testing.T) {
	opened := jsonFrame(wire.KindStarted, fileX)
	for name, c := range map[string]struct {
		script func(*wire.Conn, net.Conn, wire.Request)
		is     error
	}{
		"shorter":  {hold(opened, frame(wire.KindData, "da"), jsonFrame(wire.KindReply, fileX)), errdefs.ErrUnavailable},
		"hangs up": {say(opened, frame(wire.KindData, "da")), ErrLost},
		"fails": {hold(opened, frame(wire.KindData, "da"), jsonFrame(wire.KindFailure, wire.Failure{Code: wire.Internal})),
			errdefs.ErrInternal},
	} {
		r, _, err := talk(t, &peer{script: c.script}).ReadFile(soon(t), wire.FileRequest{Path: "f"})
		must(t, err)
		b, err := io.ReadAll(r)
		if string(b) != "da" || !errors.Is(err, c.is) {
			t.Errorf("ReadFile that %s = %q, %v; want %q, %v", name, b, err, "da", c.is)
		}
		must(t, r.Close())
		must(t, r.Close())
		if _, err := r.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("ReadFile that %s: Read after Close: %v, want an error other than EOF", name, err)
		}
	}
}

func TestReadFileEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(soon(t))
	c := talk(t, &peer{script: hold(jsonFrame(wire.KindStarted, fileX))})
	r, _, err := c.ReadFile(ctx, wire.FileRequest{Path: "f"})
	must(t, err)
	defer r.Close()
	cancel()
	if _, err := io.ReadAll(r); !errors.Is(err, context.Canceled) {
		t.Errorf("read with a cancelled context: %v, want %v", err, context.Canceled)
	}
}

func TestRefusedWriteReturnsImmediately(t *testing.T) {
	c := talk(t, &peer{script: func(c *wire.Conn, _ net.Conn, _ wire.Request) {
		_ = c.Fail(wire.ResourceExhausted, "path", "disk full")
	}})
	r, w := io.Pipe()
	defer w.Close()
	if _, err := c.WriteFile(soon(t), wire.FileRequest{Path: "f"}, r); !errdefs.IsResourceExhausted(err) {
		t.Errorf("WriteFile to a full disk: %v, want ResourceExhausted", err)
	}
}

func TestInputClosingClosesStdin(t *testing.T) {
	for _, pipe := range []bool{false, true} {
		for _, closing := range []bool{false, true} {
			got := make(chan string, 1)
			c := talk(t, &peer{pipe: pipe, script: func(c *wire.Conn, _ net.Conn, req wire.Request) {
				if req.Op == wire.OpShell {
					_ = c.Reply(shellX)
					return
				}
				var in []byte
				for {
					kind, b, err := c.ReadFrame()
					if in = append(in, b...); err != nil || kind == wire.KindEOF {
						got <- fmt.Sprintf("%d closed=%v", len(in), kind == wire.KindEOF)
						_ = c.Reply(nil)
						return
					}
				}
			}})
			err := c.Input(soon(t), "x", strings.NewReader(strings.Repeat("x", 300_000)), closing)
			want := fmt.Sprintf("300000 closed=%v", closing)
			if s := <-got; err != nil || s != want {
				t.Errorf("Input with pipe %v, closing %v: %v, the guest got %s; want no error, %s", pipe, closing, err, s, want)
			}
		}
	}
	c := talk(t, &peer{script: hold()})
	if err := c.Input(soon(t), "x", brokenPipe{}, true); !errors.Is(err, errInput) {
		t.Errorf("Input of a broken reader: %v, want %v", err, errInput)
	}
}

// Output succeeds exactly if the offsets never decrease.
func TestOutputOffsetsNeverDecrease(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var all []byte
		next, ok := int64(3), true
		var want []string
		for range rapid.IntRange(0, 6).Draw(rt, "chunks") {
			at := next + rapid.Int64Range(-1, 4).Draw(rt, "step")
			b := rapid.StringN(0, 5, 20).Draw(rt, "data")
			all = append(append(all, jsonFrame(wire.KindChunk, wire.Chunk{Offset: at})...), frame(wire.KindData, b)...)
			if ok = ok && at >= next; ok {
				want = append(want, fmt.Sprint(at, b))
			}
			next = at + int64(len(b))
		}
		all = append(all, jsonFrame(wire.KindReply, wire.OutputEnd{Next: next, EOF: true, Shell: shellX})...)
		c := New(sayer{t, all})
		var got []string
		end, err := c.Output(context.Background(), wire.Output{ID: "x", Offset: 3}, func(at int64, b []byte) error {
			got = append(got, fmt.Sprint(at, string(b)))
			return nil
		})
		if (err == nil) != ok || ok && (end.Next != next || !end.EOF) || fmt.Sprint(got) != fmt.Sprint(want) {
			rt.Fatalf("Output = %+v, %v, pieces %q; want success: %v, next %d at the end, pieces %q",
				end, err, got, ok, next, want)
		}
	})
}

func TestOutputEndsWithFailedSink(t *testing.T) {
	c := talk(t, &peer{script: hold(jsonFrame(wire.KindChunk, wire.Chunk{}), frame(wire.KindData, "x"))})
	full := errors.New("full")
	if _, err := c.Output(soon(t), wire.Output{ID: "x", Follow: true},
		func(int64, []byte) error { return full }); !errors.Is(err, full) {
		t.Errorf("Output to a full sink: %v, want %v", err, full)
	}
}

// TestFilesEndToEnd runs the client against the server of files.
func TestFilesEndToEnd(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	dir, err := os.MkdirTemp("/tmp", "guest-test-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chown(dir, 1000, 1000))
	must(t, os.Chmod(dir, 0o755))
	server := files.New(files.Options{Dir: dir})
	c := talk(t, &peer{script: func(c *wire.Conn, _ net.Conn, req wire.Request) {
		_ = server.Handle(context.Background(), req.Op, req.Body, c)
	}})
	t.Cleanup(server.Close)
	ctx := soon(t)
	content := make([]byte, 3<<20)
	_, _ = rand.Read(content)
	info, err := c.WriteFile(ctx, wire.FileRequest{Path: "/workspace/d/f", Recursive: true, Size: int64(len(content))},
		bytes.NewReader(content))
	if err != nil || info.Size != int64(len(content)) || info.UID != 1000 {
		t.Fatalf("WriteFile = %+v, %v; want %d bytes of user 1000 and no error", info, err, len(content))
	}
	r, info, err := c.ReadFile(ctx, wire.FileRequest{Path: "d/f", Offset: 10})
	must(t, err)
	var got bytes.Buffer
	_, err = io.Copy(&got, r)
	must(t, err)
	must(t, r.Close())
	if !bytes.Equal(got.Bytes(), content[10:]) || info.Path != "d/f" {
		t.Errorf("ReadFile = %d bytes of %+v, want %d bytes of d/f", got.Len(), info, len(content)-10)
	}
	l, err := c.List(ctx, wire.FileRequest{Path: "d"})
	if err != nil || len(l.Items) != 1 || l.Truncated || l.Items[0].Name != "f" {
		t.Errorf("List = %+v, %v; want only f, not truncated, and no error", l, err)
	}
	if _, err := c.WriteFile(ctx, wire.FileRequest{Path: "d"}, endless{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("WriteFile over a directory: %v, want FailedPrecondition", err)
	}
	if _, err := c.WriteFile(ctx, wire.FileRequest{Path: "d/f"},
		io.MultiReader(strings.NewReader("new"), brokenPipe{})); !errors.Is(err, errInput) {
		t.Errorf("WriteFile of a broken reader: %v, want %v", err, errInput)
	}
	if info, err := c.Stat(ctx, wire.FileRequest{Path: "d/f"}); err != nil || info.Size != int64(len(content)) {
		t.Errorf("Stat = %+v, %v; want %d bytes and no error", info, err, len(content))
	}
	must(t, c.Remove(ctx, wire.FileRequest{Path: "d", Recursive: true}))
	if _, _, err := c.ReadFile(ctx, wire.FileRequest{Path: "d/f"}); !errdefs.IsNotFound(err) {
		t.Errorf("ReadFile of a removed file: %v, want NotFound", err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func FuzzAnswer(f *testing.F) {
	info, _ := json.Marshal(fileX)
	f.Add(bytes.Join([][]byte{started, frame(wire.KindStdout, "x"), exited}, nil))
	f.Add(bytes.Join([][]byte{frame(wire.KindStarted, string(info)), frame(wire.KindData, "data"),
		frame(wire.KindReply, string(info))}, nil))
	f.Add(bytes.Join([][]byte{jsonFrame(wire.KindChunk, wire.Chunk{Offset: 1}), frame(wire.KindData, "x"),
		frame(wire.KindReply, `{"next":2,"shell":{"id":"x"}}`)}, nil))
	f.Add(frame(wire.KindFailure, `{"code":"not_found","message":"m"}`))
	f.Add(frame(wire.KindReply, `{"items":[{"name":"a","path":"a","type":"file"}],"truncated":true}`))
	f.Add(frame(wire.KindReply, `[{"id":"x"}]`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		c := New(sayer{t, answer})
		for op, call := range calls(context.Background(), c) {
			err := call()
			if e, ok := errors.AsType[*Error](err); ok && strings.ContainsAny(e.Message, "\n\x1b") {
				t.Errorf("message of %s = %q, want neither newlines nor escapes", op, e.Message)
			}
			if err == io.EOF {
				t.Errorf("%s: %v, want it wrapped or another error", op, err)
			}
		}
	})
}
