package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

var (
	started = jsonFrame(wire.KindStarted, wire.Started{ID: "x", Pid: 7})
	exited  = jsonFrame(wire.KindReply, runtime.Result{Ending: runtime.Exited})
)

func command() wire.Command { return wire.Command{ID: "x", Argv: []string{"true"}} }

func TestExecTransfersAllStreams(t *testing.T) {
	signalled := make(chan wire.Signal, 1)
	c := talk(t, &peer{script: func(c *wire.Conn, _ net.Conn, req wire.Request) {
		if req.Op == wire.OpSignal {
			var s wire.Signal
			_ = json.Unmarshal(req.Body, &s)
			signalled <- s
			_ = c.Reply(nil)
			return
		}
		var cmd wire.Command
		_ = json.Unmarshal(req.Body, &cmd)
		_ = c.WriteJSON(wire.KindStarted, wire.Started{ID: "x", Pid: 7})
		n := 0
		for {
			kind, b, err := c.ReadFrame()
			if err != nil || !cmd.Stdin {
				return
			}
			if kind == wire.KindEOF {
				break
			}
			n += len(b)
			_ = c.WriteFrame(wire.KindStdout, b)
		}
		_ = c.WriteFrame(wire.KindStderr, []byte("err"))
		_ = c.WriteFrame(wire.KindStdout, nil)
		<-signalled
		_ = c.Reply(runtime.Result{Ending: runtime.Exited, ExitCode: 3, Detail: "a\nb\x1b[31m" + strings.Repeat("x", 1000)})
	}})
	in := strings.Repeat("0123456789", 100_000)
	var out, errs bytes.Buffer
	signals := make(chan wire.Signal, 1)
	signals <- wire.Signal{Number: 15}
	var begun wire.Started
	r, err := c.Exec(soon(t), command(), IO{
		Stdin: strings.NewReader(in), Stdout: &out, Stderr: &errs, Signals: signals,
		Started: func(s wire.Started) { begun = s },
	})
	must(t, err)
	if r.Ending != runtime.Exited || r.ExitCode != 3 || out.String() != in || errs.String() != "err" || begun.Pid != 7 {
		t.Errorf("Exec = %+v, %d bytes of output, errors %q, %+v; want code 3, the %d bytes of input, %q, pid 7",
			r, out.Len(), errs.String(), begun, len(in), "err")
	}
	if len(r.Detail) > maxDetail || strings.ContainsAny(r.Detail, "\n\x1b") {
		t.Errorf("detail = %q, want at most %d bytes without newlines and escapes", r.Detail, maxDetail)
	}
}

func TestExecHostileGuestIsLost(t *testing.T) {
	result := func(r runtime.Result) []byte { return jsonFrame(wire.KindReply, r) }
	for name, c := range map[string]struct {
		script   func(*wire.Conn, net.Conn, wire.Request)
		protocol bool
	}{
		"hangs up":                {say(), false},
		"hangs up after start":    {say(started), false},
		"hangs up in a header":    {say(started, exited[:3]), false},
		"hangs up in a frame":     {say(started, exited[:10]), false},
		"hangs up after output":   {say(started, frame(wire.KindStdout, "x")), false},
		"unknown kind":            {hold(frame('?', "")), true},
		"garbage":                 {hold([]byte("HTTP/1.1 200 OK\r\n\r\n")), true},
		"huge frame":              {hold(started, []byte{'1', 0xff, 0xff, 0xff, 0xff}), true},
		"frame over its limit":    {hold(started, frame(wire.KindStdout, strings.Repeat("x", wire.MaxFrame+1))), true},
		"huge reply":              {hold(started, []byte{'R', 0x7f, 0, 0, 0}), true},
		"output before start":     {hold(frame(wire.KindStdout, "x")), true},
		"reply before start":      {hold(exited), true},
		"started twice":           {hold(started, started), true},
		"a request":               {hold(frame(wire.KindRequest, "{}")), true},
		"input":                   {hold(started, frame(wire.KindStdin, "x")), true},
		"file data":               {hold(started, frame(wire.KindData, "x")), true},
		"end of data":             {hold(started, frame(wire.KindEOF, "")), true},
		"started without an id":   {hold(frame(wire.KindStarted, "{}")), true},
		"started is not JSON":     {hold(frame(wire.KindStarted, "{")), true},
		"started of an odd id":    {hold(jsonFrame(wire.KindStarted, wire.Started{ID: "a\nb"})), true},
		"reply is not JSON":       {hold(started, frame(wire.KindReply, "}")), true},
		"reply is empty":          {hold(started, frame(wire.KindReply, "")), true},
		"reply of another type":   {hold(started, frame(wire.KindReply, `[1]`)), true},
		"reply is too deep":       {hold(started, frame(wire.KindReply, strings.Repeat("[", 500_000))), true},
		"no ending":               {hold(started, frame(wire.KindReply, "{}")), true},
		"an ending of the host's": {hold(started, result(runtime.Result{Ending: runtime.PolicyDenied})), true},
		"an ending that is not":   {hold(started, result(runtime.Result{Ending: "fine"})), true},
		"exit code 256":           {hold(started, result(runtime.Result{Ending: runtime.Exited, ExitCode: 256})), true},
		"exited with none":        {hold(started, result(runtime.Result{Ending: runtime.Exited, ExitCode: -1})), true},
		"signal 1000":             {hold(started, result(runtime.Result{Ending: runtime.Signalled, Signal: 1000})), true},
		"negative time":           {hold(started, result(runtime.Result{Ending: runtime.Exited, Duration: -1})), true},
		"negative memory": {hold(started,
			result(runtime.Result{Ending: runtime.Exited, Usage: runtime.Usage{MemoryBytes: -1}})), true},
		"failure that is not JSON": {hold(frame(wire.KindFailure, "no")), true},
		"numbers that do not fit":  {hold(started, frame(wire.KindReply, `{"ending":"exited","exit_code":1e30}`)), true},
		"hangs up without reading": {func(_ *wire.Conn, nc net.Conn, _ wire.Request) { _ = nc.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := talk(t, &peer{script: c.script})
			r, err := client.Exec(soon(t), command(),
				IO{Stdin: strings.NewReader(strings.Repeat("x", 1<<20)), Stdout: io.Discard})
			if !errors.Is(err, ErrLost) || !errdefs.IsUnavailable(err) || errors.Is(err, ErrProtocol) != c.protocol {
				t.Errorf("%v, want lost, and protocol %v", err, c.protocol)
			}
			if errors.Is(err, io.EOF) || r.Ending != "" {
				t.Errorf("got result %+v and error %v, want no result and no io.EOF", r, err)
			}
		})
	}
}

func TestExecRefusalHasClass(t *testing.T) {
	for code, is := range map[string]func(error) bool{
		wire.InvalidArgument: errdefs.IsInvalidArgument, wire.NotFound: errdefs.IsNotFound,
		wire.AlreadyExists:      errdefs.IsAlreadyExists,
		wire.FailedPrecondition: errdefs.IsFailedPrecondition, wire.ResourceExhausted: errdefs.IsResourceExhausted,
		wire.PermissionDenied: errdefs.IsPermissionDenied, wire.Unavailable: errdefs.IsUnavailable,
		wire.Internal: errdefs.IsInternal,
		"made_up":     errdefs.IsInternal, "": errdefs.IsInternal,
	} {
		message := strings.Repeat("m", 3000) + "\n"
		c := talk(t, &peer{script: hold(jsonFrame(wire.KindFailure,
			wire.Failure{Code: code, Field: "user", Message: message}))})
		in := strings.NewReader("whole")
		_, err := c.Exec(soon(t), command(), IO{Stdin: in})
		if in.Len() != 5 {
			t.Errorf("%d bytes of input left, want 5: the command never ran", in.Len())
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || !is(err) || errors.Is(err, ErrLost) || e.Field != "user" || len(e.Message) > maxMessage {
			t.Errorf("Exec refused with %q: %v; want its class and not %v, the field user, and at most %d bytes",
				code, err, ErrLost, maxMessage)
		}
	}
	c := talk(t, &peer{script: hold()})
	if _, err := c.Exec(soon(t), wire.Command{Argv: []string{strings.Repeat("x", wire.MaxHeader)}},
		IO{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Exec of a request that is too large: %v, want InvalidArgument", err)
	}
}

func TestSilentGuestIsPinged(t *testing.T) {
	quiet := make(chan struct{})
	p := &peer{script: func(c *wire.Conn, nc net.Conn, _ wire.Request) {
		_, _ = nc.Write(started)
		<-quiet
		_, _ = nc.Write(exited)
		drain(c)
	}}
	c := talk(t, p)
	go func() { defer close(quiet); p.pinged(3) }()
	r, err := c.Exec(soon(t), command(), IO{})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || r.Ending != runtime.Exited || p.pings < 3 {
		t.Errorf("Exec = %+v, %v after %d pings; want %s and no error after at least 3", r, err, p.pings, runtime.Exited)
	}
}

func TestUnresponsiveGuestIsLost(t *testing.T) {
	for name, script := range map[string]func(*wire.Conn, net.Conn, wire.Request){
		"says nothing": hold(), "says nothing after start": hold(started), "stops in a frame": hold(started, exited[:9]),
	} {
		c := talk(t, &peer{deaf: true, script: script})
		c.times.ping = 50 * time.Millisecond
		if _, err := c.Exec(soon(t), command(), IO{}); !errors.Is(err, ErrLost) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("guest that %s: %v; want %v and not %v", name, err, ErrLost, context.DeadlineExceeded)
		}
	}
}

func TestOverdueAnswerIsLost(t *testing.T) {
	c := talk(t, &peer{script: hold()})
	c.times.short = 200 * time.Millisecond
	if _, err := c.Exec(soon(t), command(), IO{}); !errors.Is(err, ErrLost) {
		t.Errorf("Exec without a start: %v, want %v", err, ErrLost)
	}
	c = talk(t, &peer{script: func(c *wire.Conn, nc net.Conn, _ wire.Request) {
		_, _ = nc.Write(started)
		for c.WriteFrame(wire.KindStdout, []byte("x")) == nil {
		}
	}})
	c.times.short = 200 * time.Millisecond
	cmd := command()
	cmd.Timeout = time.Millisecond
	if _, err := c.Exec(soon(t), cmd, IO{}); !errors.Is(err, ErrLost) {
		t.Errorf("Exec with endless output: %v, want %v", err, ErrLost)
	}
}

// killed returns a script of a guest that kills the command when the host half-closes the stream or
// sends a signal on another one.
func killed(first ...[]byte) func(*wire.Conn, net.Conn, wire.Request) {
	signalled := make(chan struct{})
	return func(c *wire.Conn, nc net.Conn, req wire.Request) {
		if req.Op == wire.OpSignal {
			close(signalled)
			_ = c.Reply(nil)
			return
		}
		_, _ = nc.Write(bytes.Join(append([][]byte{started}, first...), nil))
		hungUp := make(chan struct{})
		go func() { drain(c); close(hungUp) }()
		r := runtime.Result{Ending: runtime.SandboxLost, ExitCode: -1}
		select {
		case <-hungUp:
		case <-signalled:
			r = runtime.Result{Ending: runtime.Signalled, Signal: 9, ExitCode: -1}
		}
		_ = c.WriteFrame(wire.KindStdout, []byte("late"))
		_ = c.Reply(r)
	}
}

func TestCancelledCommandHasEnding(t *testing.T) {
	for _, pipe := range []bool{false, true} {
		for _, in := range []io.Reader{nil, endless{}} {
			for want, cause := range map[string]error{detailCaller: nil, detailTime: context.DeadlineExceeded,
				"its lease is over": errors.New("its lease is over")} {
				c := talk(t, &peer{pipe: pipe, script: killed()})
				ctx, cancel := context.WithCancelCause(soon(t))
				r, err := c.Exec(ctx, command(), IO{Stdin: in, Started: func(wire.Started) { cancel(cause) }})
				if err != nil || r.Ending != runtime.Cancelled || r.Detail != want {
					t.Errorf("Exec with pipe %v, input %v, cancelled by %v = %+v, %v; want %s, %q and no error",
						pipe, in != nil, cause, r, err, runtime.Cancelled, want)
				}
			}
		}
	}
}

// A command that only the guest reports as cancelled is lost, because no caller cancelled it.
func TestCommandCancelledByGuestIsLost(t *testing.T) {
	for _, said := range []runtime.Ending{runtime.Cancelled, runtime.SandboxLost} {
		c := talk(t, &peer{script: say(started, jsonFrame(wire.KindReply, runtime.Result{Ending: said, ExitCode: -1}))})
		if r, err := c.Exec(soon(t), command(), IO{}); err != nil || r.Ending != runtime.SandboxLost ||
			r.Detail != detailGuest {
			t.Errorf("Exec with %s = %+v, %v; want %s, %q and no error", said, r, err, runtime.SandboxLost, detailGuest)
		}
		want, detail := said, detailGuest
		if said == runtime.Cancelled { // by a signal on another stream
			detail = detailSignal
		}
		if r, err := c.ExecSession(soon(t), wire.SessionExec{ID: "x"}, IO{}); err != nil || r.Ending != want ||
			r.Detail != detail {
			t.Errorf("ExecSession with %s = %+v, %v; want %s, %q and no error", said, r, err, want, detail)
		}
	}
}

func TestCancelWithoutEndingIsLost(t *testing.T) {
	for name, script := range map[string]func(*wire.Conn, net.Conn, wire.Request){
		"hangs up": func(c *wire.Conn, nc net.Conn, _ wire.Request) { _, _ = nc.Write(started); drain(c) },
		"talks on": func(c *wire.Conn, nc net.Conn, _ wire.Request) {
			_, _ = nc.Write(started)
			for c.WriteFrame(wire.KindStdout, []byte("x")) == nil {
			}
		},
	} {
		c := talk(t, &peer{script: script})
		c.times.cancel = 200 * time.Millisecond
		reason := errors.New("the caller left")
		ctx, cancel := context.WithCancelCause(soon(t))
		_, err := c.Exec(ctx, command(), IO{Started: func(wire.Started) { cancel(reason) }})
		if !errors.Is(err, ErrLost) || !errors.Is(err, reason) {
			t.Errorf("guest that %s: %v, want %v and %v", name, err, ErrLost, reason)
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (brokenPipe) Read([]byte) (int, error)  { return 0, errors.New("gone") }

func TestFailedStreamCancelsCommand(t *testing.T) {
	c := talk(t, &peer{script: killed(frame(wire.KindStdout, "x"))})
	r, err := c.Exec(soon(t), command(), IO{Stdout: brokenPipe{}})
	if err != nil || r.Ending != runtime.Cancelled || r.Detail != detailOutput {
		t.Errorf("Exec with broken output = %+v, %v; want %s, %q and no error", r, err, runtime.Cancelled, detailOutput)
	}
	c = talk(t, &peer{script: killed()})
	if r, err = c.Exec(soon(t), command(), IO{Stdin: brokenPipe{}}); err != nil || r.Ending != runtime.Cancelled ||
		r.Detail != detailInput {
		t.Errorf("Exec with broken input = %+v, %v; want %s, %q and no error", r, err, runtime.Cancelled, detailInput)
	}
}

func TestExecDoesNotWaitForReader(t *testing.T) {
	c := talk(t, &peer{script: func(c *wire.Conn, nc net.Conn, _ wire.Request) {
		_, _ = nc.Write(append(bytes.Clone(started), exited...))
		drain(c)
	}})
	r, w := io.Pipe()
	defer w.Close()
	if res, err := c.Exec(soon(t), command(), IO{Stdin: r}); err != nil || res.Ending != runtime.Exited {
		t.Errorf("Exec = %+v, %v; want %s and no error", res, err, runtime.Exited)
	}
}

func TestExecDoesNotWaitForUnreadInput(t *testing.T) {
	for _, pipe := range []bool{false, true} {
		c := talk(t, &peer{pipe: pipe, script: func(_ *wire.Conn, nc net.Conn, _ wire.Request) {
			_, _ = nc.Write(append(bytes.Clone(started), exited...))
			_, _ = io.Copy(io.Discard, io.LimitReader(nc, 10))
		}})
		endless := io.MultiReader(strings.NewReader(strings.Repeat("x", 8<<20)))
		if res, err := c.Exec(soon(t), command(), IO{Stdin: endless}); err != nil || res.Ending != runtime.Exited {
			t.Errorf("Exec with pipe %v = %+v, %v; want %s and no error", pipe, res, err, runtime.Exited)
		}
	}
}

type noOpener struct{ err error }

func (o noOpener) Open(ctx context.Context) (net.Conn, error) {
	if o.err != nil {
		return nil, o.err
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestUnreachableGuestIsUnavailable(t *testing.T) {
	c := New(noOpener{errors.New("no such sandbox")})
	if _, err := c.Ping(soon(t)); !errdefs.IsUnavailable(err) || errors.Is(err, ErrLost) {
		t.Errorf("Ping of a missing sandbox: %v; want Unavailable and not %v", err, ErrLost)
	}
	c = New(noOpener{})
	c.times.open = 50 * time.Millisecond
	if _, err := c.Ping(soon(t)); !errdefs.IsUnavailable(err) {
		t.Errorf("Ping past its deadline: %v, want Unavailable", err)
	}
	ctx, cancel := context.WithCancel(soon(t))
	cancel()
	if _, err := New(noOpener{}).Ping(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Ping with a cancelled context: %v, want %v", err, context.Canceled)
	}
}

// BenchmarkExecOutput measures one stream of output on the host.
func BenchmarkExecOutput(b *testing.B) {
	chunk := make([]byte, wire.HeaderLen+wire.MaxFrame)
	c := talk(b, &peer{script: func(c *wire.Conn, nc net.Conn, _ wire.Request) {
		_, _ = nc.Write(started)
		for range b.N {
			if c.WriteRoom(wire.KindStdout, chunk) != nil {
				return
			}
		}
		_ = c.Reply(runtime.Result{Ending: runtime.Exited})
	}})
	b.SetBytes(wire.MaxFrame)
	b.ReportAllocs()
	if _, err := c.Exec(context.Background(), command(), IO{Stdout: io.Discard}); err != nil {
		b.Fatal(err)
	}
}
