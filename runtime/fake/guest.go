package fake

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Guest answers the operations ping, claim, exec and end like the guest of a sandbox, and refuses
// others as unimplemented.
//
// Its commands are true, false, exit N, echo WORDS, cat, sleep SECONDS and lost (which cuts the
// stream), directly or after sh -c or bash -c. It checks a command's argument rules and ignores its
// limits.
type Guest struct {
	// End is called by the operation end; nil does nothing.
	End func()

	mu       sync.Mutex
	lease    string
	env      map[string]string
	alias    map[string]string
	commands int
	started  time.Time
}

// Env returns the environment from the claim.
func (g *Guest) Env() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.env
}

// Alias returns the workspace aliases from the claim.
func (g *Guest) Alias() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.alias
}

// Serve answers the one request of a stream.
func (g *Guest) Serve(ctx context.Context, conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(wire.HeaderTime))
	kind, payload, err := readFrame(conn)
	if err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	if kind != wire.KindRequest {
		replyFailure(conn, "invalid_argument", "invalid request or protocol version")
		return
	}
	g.Answer(ctx, conn, payload)
}

// Answer answers a request whose header was read from the stream.
func (g *Guest) Answer(ctx context.Context, conn net.Conn, header []byte) {
	var request wire.Request
	if err := json.Unmarshal(header, &request); err != nil || request.Version != wire.Version {
		replyFailure(conn, "invalid_argument", "invalid request or protocol version")
		return
	}
	switch request.Op {
	case wire.OpPing:
		reply(conn, wire.KindReply, g.pong())
	case wire.OpClaim:
		g.claim(conn, request.Body)
	case wire.OpExec:
		g.exec(ctx, conn, request.Body)
	case wire.OpEnd:
		reply(conn, wire.KindReply, struct{}{})
		if g.End != nil {
			g.End()
		}
	default:
		replyFailure(conn, "unimplemented", fmt.Sprintf("operation %q is not implemented by the fake guest", request.Op))
	}
}

func (g *Guest) pong() wire.Pong {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.started.IsZero() {
		g.started = time.Now()
	}
	return wire.Pong{Version: wire.Version, Kill: "cgroup", Claimed: g.lease != "", Commands: g.commands,
		UptimeMS: time.Since(g.started).Milliseconds(), RSSBytes: 4 << 20}
}

func (g *Guest) claim(conn net.Conn, body json.RawMessage) {
	var claim wire.Claim
	if err := json.Unmarshal(body, &claim); err != nil || claim.Lease == "" {
		replyFailure(conn, "invalid_argument", "invalid claim: lease missing")
		return
	}
	g.mu.Lock()
	taken := g.lease != "" && g.lease != claim.Lease
	if !taken {
		g.lease, g.env, g.alias = claim.Lease, claim.Env, claim.Alias
	}
	g.mu.Unlock()
	if taken {
		replyFailure(conn, "failed_precondition", "the sandbox is claimed by another lease")
		return
	}
	reply(conn, wire.KindReply, struct{}{})
}

var (
	errLost    = errors.New("stream broken")
	errHungUp  = errors.New("host closed the stream")
	errSignal  = errors.New("signalled")
	errTimeout = errors.New("timeout")
)

func (g *Guest) exec(ctx context.Context, conn net.Conn, body json.RawMessage) {
	var command wire.Command
	if err := json.Unmarshal(body, &command); err != nil || len(command.Argv) == 0 {
		replyFailure(conn, "invalid_argument", "invalid command: argv missing")
		return
	}
	if command.Check != nil {
		// There are no files, so check paths by name only.
		if refusal := command.Check.Check(command.Argv); refusal != nil {
			reply(conn, wire.KindFailure, wire.Failure{Code: wire.PermissionDenied, Field: "argv", Message: refusal.Message})
			return
		}
	}
	g.addCommands(1)
	defer g.addCommands(-1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if command.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, command.Timeout, errTimeout)
		defer stop()
	}
	stdin, feed := io.Pipe()
	context.AfterFunc(ctx, func() { _ = stdin.CloseWithError(context.Cause(ctx)) })
	var reading sync.WaitGroup
	reading.Add(1)
	go func() {
		defer reading.Done()
		readInput(conn, feed, cancel)
	}()
	defer reading.Wait()
	defer conn.Close() // makes readInput return

	began := time.Now()
	reply(conn, wire.KindStarted, wire.Started{ID: command.ID, Pid: 2})
	code := runCommand(ctx, commandWords(command.Argv), stdin, conn)
	result := runtime.Result{Ending: runtime.Exited, ExitCode: code, Duration: time.Since(began)}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errHungUp):
		result.Ending, result.ExitCode = runtime.SandboxLost, -1
	case code == codeLost, errors.Is(cause, errLost):
		return
	case errors.Is(cause, errTimeout):
		result.Ending, result.ExitCode = runtime.Timeout, -1
	case errors.Is(cause, errSignal):
		result.Ending, result.ExitCode, result.Signal = runtime.Signalled, -1, 15
	}
	reply(conn, wire.KindReply, result)
}

func (g *Guest) addCommands(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.commands += n
}

// readInput handles the host's frames until the stream ends.
func readInput(conn io.Reader, stdin *io.PipeWriter, cancel context.CancelCauseFunc) {
	for {
		kind, payload, err := readFrame(conn)
		switch {
		case errors.Is(err, io.EOF): // the caller closed its direction to cancel, and still reads the result
			cancel(errHungUp)
			_ = stdin.CloseWithError(errHungUp)
			return
		case err != nil:
			cancel(errLost)
			_ = stdin.CloseWithError(errLost)
			return
		case kind == wire.KindStdin:
			_, _ = stdin.Write(payload) // fails if the command has ended
		case kind == wire.KindEOF:
			_ = stdin.Close()
		case kind == wire.KindSignal:
			cancel(errSignal)
		}
	}
}

// commandWords returns what a shell would run with -c, for commands without shell syntax.
func commandWords(argv []string) []string {
	if name := path.Base(argv[0]); (name == "sh" || name == "bash") && len(argv) > 2 && strings.HasPrefix(argv[1], "-") {
		return strings.Fields(argv[2])
	}
	return argv
}

const codeLost = -2

func runCommand(ctx context.Context, argv []string, stdin io.Reader, conn io.Writer) int {
	if len(argv) == 0 {
		return 0
	}
	argument := strings.Join(argv[1:], " ")
	switch path.Base(argv[0]) {
	case "true":
		return 0
	case "false":
		return 1
	case "lost":
		return codeLost
	case "exit":
		n, _ := strconv.Atoi(argument)
		return n
	case "echo":
		_ = writeFrame(conn, wire.KindStdout, []byte(argument+"\n"))
		return 0
	case "cat":
		_, _ = io.CopyBuffer(stdoutWriter{conn}, struct{ io.Reader }{stdin}, make([]byte, wire.MaxFrame))
		return 0
	case "sleep":
		seconds, _ := strconv.ParseFloat(argument, 64)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(seconds * float64(time.Second))):
		}
		return 0
	}
	_ = writeFrame(conn, wire.KindStderr, []byte(argv[0]+": not found\n"))
	return 127
}

// stdoutWriter writes stdout frames.
type stdoutWriter struct{ w io.Writer }

func (f stdoutWriter) Write(p []byte) (int, error) {
	if err := writeFrame(f.w, wire.KindStdout, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func reply(w io.Writer, kind wire.Kind, body any) {
	payload, err := json.Marshal(body)
	if err != nil {
		payload = []byte("{}")
	}
	_ = writeFrame(w, kind, payload) // fails only if the host is gone
}

func replyFailure(w io.Writer, code, message string) {
	reply(w, wire.KindFailure, wire.Failure{Code: code, Message: message})
}

// readFrame and writeFrame do not use the host's codec, so that tests catch its mistakes.
func readFrame(r io.Reader) (wire.Kind, []byte, error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(header[1:])
	if n > wire.MaxHeader {
		return 0, nil, fmt.Errorf("frame of %d bytes exceeds the limit", n)
	}
	payload := make([]byte, n)
	_, err := io.ReadFull(r, payload)
	return wire.Kind(header[0]), payload, err
}

func writeFrame(w io.Writer, kind wire.Kind, payload []byte) error {
	frame := make([]byte, 5, 5+len(payload))
	frame[0] = byte(kind)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload))) // payloads are at most MaxHeader
	_, err := w.Write(append(frame, payload...))
	return err
}
