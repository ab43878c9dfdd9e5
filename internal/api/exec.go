package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

// How long a client's input is still read after the answer, and during a hand-over.
const (
	drainTime     = 5 * time.Second
	drainHandOver = time.Second
)

// escapedPiece is how many bytes of output are encoded as JSON at once.
const escapedPiece = 32 << 10

// runFunc runs a command with the given streams.
type runFunc func(st core.Stream) (v1.ExecResult, error)

func (s *Server) exec(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.Exec
	stdin, err := execBody(w, r, &req)
	if err != nil {
		return err
	}
	return s.stream(w, r, stdin, func(st core.Stream) (v1.ExecResult, error) {
		return s.opts.Engine.Exec(r.Context(), p, r.PathValue("id"), req, st)
	})
}

func (s *Server) run(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.Run
	stdin, err := execBody(w, r, &req)
	if err != nil {
		return err
	}
	return s.stream(w, r, stdin, func(st core.Stream) (v1.ExecResult, error) {
		return s.opts.Engine.Run(r.Context(), p, req, st)
	})
}

// drain reads and drops the rest of a client's input after the answer, until the client closes. If
// the connection were closed while the client writes, its writes would fail, and it might not read
// the answer.
func (s *Server) drain(w http.ResponseWriter, stdin io.Reader) {
	ctl := http.NewResponseController(w)
	if ctl.Flush() != nil {
		return
	}
	_ = ctl.SetReadDeadline(time.Now().Add(drainTime)) // every connection supports it
	stop := context.AfterFunc(s.handOver, func() { _ = ctl.SetReadDeadline(time.Now().Add(drainHandOver)) })
	defer stop()
	_, _ = io.Copy(io.Discard, stdin) // only the end matters, with or without an error
}

// stream runs a command and answers in the requested form. It sends nothing before the command
// runs, so that an error still gets its status.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, stdin io.Reader, do runFunc) error {
	f, err := form(r, formJSON, formEvents, formRaw, formFrames)
	if err != nil {
		return err
	}
	switch f {
	case formEvents:
		err = sendEvents(w, stdin, do)
	case formRaw:
		return sendRaw(w, stdin, do) // its result is sent in the trailer, when the handler returns
	case formFrames:
		err = sendFrames(w, stdin, do)
	default:
		err = sendWhole(w, stdin, do)
	}
	if err == nil && stdin != nil {
		s.drain(w, stdin)
	}
	return err
}

// sendWhole answers with the result and the kept part of the output.
func sendWhole(w http.ResponseWriter, stdin io.Reader, do runFunc) error {
	res, err := do(core.Stream{Stdin: stdin})
	if err != nil {
		return err
	}
	sent, err := holdKept(w, res, nil)
	if err != nil {
		return err
	}
	defer sent()
	return replyExec(w, res)
}

// replyExec sends a result as JSON. It encodes the output piece by piece: as JSON, output can take
// six times its memory.
func replyExec(w http.ResponseWriter, res v1.ExecResult) error {
	output := []string{res.Stdout, res.Stderr}
	res.Stdout, res.Stderr = "", ""
	b, err := json.Marshal(res)
	if err != nil {
		return err
	}
	n := byteCounter(len(b))
	for _, s := range output {
		if err := writeEscaped(&n, s); err != nil {
			return err
		}
	}
	if a, ok := w.(*answer); ok {
		a.Expect(int64(n))
	}
	w.Header().Set("Content-Type", formJSON)
	w.Header().Set("Content-Length", strconv.Itoa(int(n)))         // the client may send input until it has all
	for i, empty := range []string{`"stdout":""`, `"stderr":""`} { // no string contains an unescaped quote
		at := bytes.Index(b, []byte(empty)) + len(empty) - 1
		if _, err := w.Write(b[:at]); err != nil {
			return err
		}
		b = b[at:]
		if err := writeEscaped(w, output[i]); err != nil {
			return err
		}
	}
	_, err = w.Write(b)
	return err
}

// byteCounter counts the bytes that are written.
type byteCounter int

// Write implements io.Writer.
func (n *byteCounter) Write(p []byte) (int, error) {
	*n += byteCounter(len(p))
	return len(p), nil
}

// writeEscaped writes s as the inner part of a JSON string.
func writeEscaped(w io.Writer, s string) error {
	for s != "" {
		n := min(len(s), escapedPiece)
		if n < len(s) {
			n -= incompleteSuffix([]byte(s[n-utf8.UTFMax : n]))
		}
		b, err := json.Marshal(s[:n])
		if err != nil {
			return err
		}
		if _, err := w.Write(b[1 : len(b)-1]); err != nil {
			return err
		}
		s = s[n:]
	}
	return nil
}

// holdKept charges the output that an answer sends from memory. Of a stream, that is the output of
// an earlier request with the same key. The caller must call sent when it has been sent. err is the
// error of the command, and is returned.
func holdKept(w http.ResponseWriter, res v1.ExecResult, err error) (sent func(), _ error) {
	a, ok := w.(*answer)
	n := int64(len(res.Stdout) + len(res.Stderr))
	if !ok || n == 0 || err != nil {
		return func() {}, err
	}
	held := a.Account()
	if held.Charge(n) != nil {
		return func() {}, httpguard.Dropped("the command has run, but its output")
	}
	return held.Close, nil
}

// sendRaw sends stdout as it is, and the result in a trailer.
func sendRaw(w http.ResponseWriter, stdin io.Reader, do runFunc) error {
	w.Header().Set("Trailer", "Orchestrator-Result")
	w.Header().Set("Content-Type", formRaw)
	res, err := do(core.Stream{Stdin: stdin, Stdout: flushWriter{w, http.NewResponseController(w)}})
	sent, err := holdKept(w, res, err)
	defer sent()
	if err != nil {
		w.Header().Del("Trailer")
		return err
	}
	kept := res.Stdout
	res.Stdout, res.Stderr = "", ""
	b, err := json.Marshal(res)
	if err != nil {
		return err
	}
	// This sends the header if there was no output, and the output of an earlier request with the
	// same key.
	if _, err := io.WriteString(w, kept); err != nil {
		return err
	}
	w.Header().Set("Orchestrator-Result", string(b))
	return nil
}

// flushWriter flushes small writes at once. Large writes fill the buffer and need no flush.
type flushWriter struct {
	io.Writer
	ctl *http.ResponseController
}

func (f flushWriter) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	if err == nil && len(p) < 4096 {
		err = f.ctl.Flush()
	}
	return n, err
}

// frameWriter sends frames: one byte for the kind, four bytes for the length, the payload. Its
// methods may be called concurrently.
type frameWriter struct {
	mu  sync.Mutex
	w   io.Writer
	ctl *http.ResponseController
}

func (f *frameWriter) send(kind byte, p []byte) error {
	var head [5]byte
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(len(p))) // the engine's pieces are far smaller
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.w.Write(head[:]); err != nil {
		return err
	}
	if _, err := f.w.Write(p); err != nil {
		return err
	}
	if len(p) < 4096 || kind == 'E' {
		return f.ctl.Flush()
	}
	return nil
}

func (f *frameWriter) writer(kind byte) io.Writer {
	return writerFunc(func(p []byte) (int, error) { return len(p), f.send(kind, p) })
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// sendFrames sends both streams and the result as frames.
func sendFrames(w http.ResponseWriter, stdin io.Reader, do runFunc) error {
	w.Header().Set("Content-Type", formFrames)
	f := &frameWriter{w: w, ctl: http.NewResponseController(w)}
	began := false
	res, err := do(core.Stream{Stdin: stdin, Stdout: f.writer('1'), Stderr: f.writer('2'), Started: func(id string) {
		began = true
		b, _ := json.Marshal(map[string]string{"id": id}) // a map of strings
		_ = f.send('S', b)                                // an output frame will report a client that is gone
	}})
	sent, err := holdKept(w, res, err)
	defer sent()
	if err != nil && !began {
		return err
	}
	if err != nil {
		b, e := json.Marshal(redactedProblem(w, err))
		if e != nil {
			return e
		}
		return f.send('P', b)
	}
	// Output of an earlier request with the same key was not streamed.
	for kind, kept := range map[byte]string{'1': res.Stdout, '2': res.Stderr} {
		if kept == "" {
			continue
		}
		if err := f.send(kind, []byte(kept)); err != nil {
			return err
		}
	}
	res.Stdout, res.Stderr = "", ""
	b, err := json.Marshal(res)
	if err != nil {
		return err
	}
	return f.send('E', b)
}

// sendEvents sends the output and the result as server-sent events. It sends comments regularly, so
// that proxies keep the connection open.
func sendEvents(w http.ResponseWriter, stdin io.Reader, do runFunc) error {
	h := w.Header()
	h.Set("Content-Type", formEvents)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	e := &eventStream{w: w, ctl: http.NewResponseController(w), stop: make(chan struct{})}
	stopBeat := sync.OnceFunc(e.stopBeat)
	defer stopBeat() // net/http's writer must not be used after a panic has left the handler
	out, errOut := &eventWriter{e: e, kind: "stdout"}, &eventWriter{e: e, kind: "stderr"}
	res, err := do(core.Stream{
		Stdin: stdin, Stdout: out, Stderr: errOut,
		Started: func(id string) {
			e.started = true
			_ = e.send(v1.Event{Type: "started", ID: id}) // an output event will report a client that is gone
			e.beating.Add(1)
			go e.beat() // stopBeat waits for it
		},
	})
	stopBeat()
	sent, err := holdKept(w, res, err)
	defer sent()
	if err != nil && !e.started {
		return err
	}
	if err != nil {
		return e.problem(err)
	}
	if err := errors.Join(out.flush(), errOut.flush()); err != nil {
		return err
	}
	// Output of an earlier request with the same key was not streamed.
	for kind, kept := range map[string]string{"stdout": res.Stdout, "stderr": res.Stderr} {
		if kept == "" {
			continue
		}
		if err := e.send(outputPiece(kind, []byte(kept))); err != nil {
			return err
		}
	}
	res.Stdout, res.Stderr = "", ""
	return e.send(v1.Event{Type: "end", ID: res.ID, Result: &res})
}

type eventStream struct {
	mu      sync.Mutex
	w       io.Writer
	ctl     *http.ResponseController
	started bool
	stop    chan struct{}
	beating sync.WaitGroup
}

func (e *eventStream) send(v v1.Event) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.write("event: " + v.Type + "\ndata: " + string(b) + "\n\n")
}

// problem ends a stream that has begun with an error event.
func (e *eventStream) problem(err error) error {
	b, mErr := json.Marshal(redactedProblem(e.w, err))
	if mErr != nil {
		return mErr
	}
	return e.write("event: problem\ndata: " + string(b) + "\n\n")
}

func (e *eventStream) write(s string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := io.WriteString(e.w, s); err != nil {
		return err
	}
	return e.ctl.Flush()
}

func (e *eventStream) beat() {
	defer e.beating.Done()
	t := time.NewTicker(heartbeatTime)
	defer t.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-t.C:
			if e.write(": still here\n\n") != nil {
				return
			}
		}
	}
}

func (e *eventStream) stopBeat() {
	close(e.stop)
	e.beating.Wait()
}
