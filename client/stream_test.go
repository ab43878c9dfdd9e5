package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func frame(kind byte, payload string) []byte {
	head := []byte{kind, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[1:], uint32(len(payload)))
	return append(head, payload...)
}

const end = `{"ending":"exited","exit_code":3}`

func TestFramesReachTheirStreams(t *testing.T) {
	big := strings.Repeat("x", 1<<20) // more than the buffer
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", framesType)
		for _, f := range [][]byte{
			frame('S', `{"id":"e1"}`), frame('1', "out\xff"), frame('2', "err"), frame('1', ""), frame('1', big), frame('E', end),
		} {
			w.Write(f)
		}
	})
	var out, errOut bytes.Buffer
	started := ""
	r, err := c.ExecStream(
		t.Context(),
		"x",
		v1.Exec{},
		Streams{Stdout: &out, Stderr: &errOut, Started: func(id string) { started = id }},
	)
	if err != nil || r.Ending != "exited" || r.ExitCode != 3 || started != "e1" {
		t.Fatalf("ExecStream = %+v, %v, started %q; want exited with code 3, started e1", r, err, started)
	}
	if out.String() != "out\xff"+big || errOut.String() != "err" {
		t.Fatalf("stdout has %d bytes, stderr %q; want %d bytes, \"err\"", out.Len(), errOut.String(), 4+len(big))
	}
}

func TestHostileFrames(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":               "",
		"half a head":           "1\x00",
		"half a payload":        string(frame('1', "abc")[:7]),
		"output without an end": string(frame('1', "abc")),
		"an end without ending": string(frame('E', `{}`)),
		"an end that is cut":    string(frame('E', end)[:20]),
		"an end of no JSON":     string(frame('E', "exited")),
		"a huge document":       "E\xff\xff\xff\xff{",
		"an unknown kind":       string(frame('Z', "")) + string(frame('E', end)),
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", framesType)
			io.WriteString(w, body)
		})
		if r, err := c.RunStream(t.Context(), v1.Run{}, Streams{}); !errors.Is(err, ErrLost) || r.Ending != "" {
			t.Errorf("%s: RunStream = %+v, %v; want ErrLost without an ending", name, r, err)
		}
	}
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(t, w, v1.ExecResult{Ending: "exited"}) })
	if _, err := c.RunStream(t.Context(), v1.Run{}, Streams{}); !errors.Is(err, ErrLost) {
		t.Errorf("RunStream with an answer of another type = %v, want ErrLost", err)
	}
}

func TestProblemFrameIsError(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", framesType)
		w.Write(frame('P', `{"status":404,"code":"not_found","detail":"sandbox x is gone"}`))
	})
	const want = "sandbox x is gone"
	if _, err := c.ExecStream(t.Context(), "x", v1.Exec{}, Streams{}); !errdefs.IsNotFound(err) || err.Error() != want {
		t.Fatalf("ExecStream = %v, want NotFound: %s", err, want)
	}
}

// Input and output flow at the same time: the server echoes piece by piece and waits for input.
func TestStdinIsFullDuplex(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := base64.URLEncoding.DecodeString(r.Header.Get("Orchestrator-Exec"))
		var x v1.Exec
		if err != nil || json.Unmarshal(b, &x) != nil || x.Argv[0] != "cat" {
			t.Errorf("request = %q, %v; want the command cat", b, err)
		}
		ctl := http.NewResponseController(w)
		if err := ctl.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", framesType)
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			w.Write(frame('1', string(buf[:n])))
			ctl.Flush()
			if err != nil {
				break
			}
		}
		w.Write(frame('E', end))
	})
	in, send := io.Pipe()
	got, receive := io.Pipe()
	go func() {
		defer send.Close()
		reply := make([]byte, 5)
		for _, line := range []string{"one 1", "two 2", "three"} {
			io.WriteString(send, line)
			if _, err := io.ReadFull(got, reply); err != nil || string(reply) != line {
				t.Errorf("echo of %q = %q, %v; want it unchanged", line, reply, err)
			}
		}
	}()
	r, err := c.ExecStream(t.Context(), "x", v1.Exec{Argv: []string{"cat"}}, Streams{Stdin: in, Stdout: receive})
	if err != nil || r.ExitCode != 3 {
		t.Fatalf("ExecStream = %+v, %v; want exit code 3", r, err)
	}
}

type fails struct{ err error }

func (f fails) Write([]byte) (int, error) { return 0, f.err }

func TestFailedWriterKillsCommand(t *testing.T) {
	gone := make(chan struct{})
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", framesType)
		w.Write(frame('1', "x"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	})
	full := errors.New("disk full")
	if _, err := c.ExecStream(t.Context(), "x", v1.Exec{}, Streams{Stdout: fails{full}}); !errors.Is(err, full) ||
		errors.Is(err, ErrLost) {
		t.Fatalf("ExecStream = %v, want %v and not ErrLost", err, full)
	}
	select {
	case <-gone:
	case <-time.After(30 * time.Second):
		t.Fatal("the request did not end, want it cancelled")
	}
}

// outputServer serves the output of a shell. respond may replace an answer.
type outputServer struct {
	t       *testing.T
	all     string
	asked   atomic.Int64
	respond func(n int64, w http.ResponseWriter, offset int) bool // reports whether it answered
}

func (s *outputServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	offset, err := strconv.Atoi("0" + q.Get("offset"))
	if err != nil {
		s.t.Error(err)
	}
	if r.Header.Get("Accept") != "application/octet-stream" {
		answer(s.t, w, v1.Output{Offset: int64(offset), NextOffset: int64(offset), EOF: offset == len(s.all)})
		return
	}
	if s.respond(s.asked.Add(1), w, offset) {
		return
	}
	w.Header().Set("Orchestrator-Offset", strconv.Itoa(offset))
	io.WriteString(w, s.all[offset:])
}

func TestFollowResumesAfterCut(t *testing.T) {
	s := &outputServer{t: t, all: strings.Repeat("0123456789", 10_000)}
	s.respond = func(n int64, w http.ResponseWriter, offset int) bool {
		switch {
		case n == 2: // the server is being restarted
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		case n < 6:
			w.Header().Set("Orchestrator-Offset", strconv.Itoa(offset))
			io.WriteString(w, s.all[offset:offset+11_111])
			w.(http.Flusher).Flush()
			cut()
		}
		return false
	}
	c := serve(t, s.ServeHTTP)
	var got bytes.Buffer
	next, err := c.Follow(
		t.Context(),
		"s1",
		FollowRequest{Gap: func(from, to int64) { t.Errorf("gap from %d to %d, want none", from, to) }},
		&got,
	)
	if err != nil || next != int64(len(s.all)) || got.String() != s.all {
		t.Fatalf("Follow = %d, %v with %d bytes; want all %d bytes", next, err, got.Len(), len(s.all))
	}
}

// away is a transport to a server that goes away for one request in the middle.
type away struct {
	http.RoundTripper
	n atomic.Int64
}

func (a *away) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.n.Add(1) == 2 {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	return a.RoundTripper.RoundTrip(r)
}

// The server goes away after the last output and before it reports the end.
func TestFollowWaitsForServerToReturn(t *testing.T) {
	s := &outputServer{t: t, all: "abc", respond: func(int64, http.ResponseWriter, int) bool { return false }}
	c := serve(t, s.ServeHTTP)
	transport := &away{RoundTripper: c.http.Transport}
	c.http.Transport = transport
	var got bytes.Buffer
	if next, err := c.Follow(t.Context(), "s1", FollowRequest{}, &got); err != nil || next != 3 || got.String() != "abc" {
		t.Fatalf("Follow = %d, %v with %q; want 3, \"abc\"", next, err, got.String())
	}
	c.http.Transport = transport.RoundTripper // its connections are closed at the end
}

func TestFollowReportsGaps(t *testing.T) {
	s := &outputServer{t: t, all: strings.Repeat("x", 100)}
	s.respond = func(n int64, w http.ResponseWriter, offset int) bool {
		if n > 1 {
			if offset == 40 {
				w.Header().Set("Orchestrator-Offset", "70")
				io.WriteString(w, s.all[70:])
				return true
			}
			return false
		}
		w.Header().Set("Orchestrator-Offset", "10")
		io.WriteString(w, s.all[10:40]) // a gap ends the answer
		return true
	}
	c := serve(t, s.ServeHTTP)
	var got bytes.Buffer
	var gaps []int64
	next, err := c.Follow(
		t.Context(),
		"s1",
		FollowRequest{Offset: 5, Gap: func(from, to int64) { gaps = append(gaps, from, to) }},
		&got,
	)
	if err != nil || next != 100 || got.Len() != 60 {
		t.Fatalf("Follow = %d, %v with %d bytes; want 100, 60 bytes", next, err, got.Len())
	}
	if want := []int64{5, 10, 40, 70}; !slices.Equal(gaps, want) {
		t.Fatalf("gaps are %v, want %v", gaps, want)
	}
}

func TestFollowEndsWithContextOrRefusal(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	var asked atomic.Int64
	c := serve(t, func(http.ResponseWriter, *http.Request) {
		if asked.Add(1) == 3 {
			cancel(enough)
		}
		cut()
	})
	if next, err := c.Follow(ctx, "s1", FollowRequest{Offset: 7}, io.Discard); !errors.Is(err, enough) || next != 7 {
		t.Fatalf("Follow = %d, %v; want 7, %v", next, err, enough)
	}
	for name, handle := range map[string]http.HandlerFunc{
		"not found": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"no offset": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x") },
		"an offset that goes back": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Orchestrator-Offset", "3")
			io.WriteString(w, "x")
		},
	} {
		c := serve(t, handle)
		var got bytes.Buffer
		if _, err := c.Follow(t.Context(), "s1", FollowRequest{Offset: 7}, &got); err == nil || got.Len() > 0 {
			t.Errorf("%s: Follow = %v with %q, want an error and no output", name, err, got.String())
		}
	}
	none, err := New(Options{Address: freeAddress(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Follow(t.Context(), "s1", FollowRequest{}, io.Discard); !errors.Is(err, ErrNoServer) {
		t.Errorf("Follow without a server = %v, want ErrNoServer", err)
	}
	s := &outputServer{t: t, all: "abc", respond: func(int64, http.ResponseWriter, int) bool { return false }}
	full := errdefs.ErrUnavailable // the client must not retry on a writer's own error of that class
	if _, err := serve(t, s.ServeHTTP).Follow(t.Context(), "s1", FollowRequest{}, fails{full}); !errors.Is(err, full) {
		t.Errorf("Follow with a failing writer = %v, want %v", err, full)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(append(frame('1', "out"), frame('E', end)...))
	f.Add(frame('P', `{"status":500}`))
	f.Add([]byte("E\xff\xff\xff\xff"))
	c, err := New(Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := c.readFrames(t.Context(), bytes.NewReader(body), Streams{Stdout: io.Discard})
		if err == nil && (r.Ending == "" || !bytes.ContainsRune(body, 'E')) {
			t.Fatalf("readFrames(%q) = %+v, want an error or an ending", body, r)
		}
	})
}
