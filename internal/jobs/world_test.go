package jobs_test

import (
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/jobs"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}

var (
	me  = caller.Principal{Caller: caller.LocalCaller, Operator: true}
	bob = caller.Principal{Caller: "bob", Trust: 3}
	eve = caller.Principal{Caller: "eve", Trust: 3}
)

// world is a state directory and an engine with sandboxes that outlive services.
type world struct {
	dir  string
	host *fake.Host

	mu     sync.Mutex
	guests map[string]*guest // by sandbox
	ran    []string          // the started commands, in order
	// files are the files of every sandbox, with their names as contents. Those whose names begin with
	// "refused" cannot be read, and none can be written.
	files []string
	// lose, if set, ends the stream of an operation without an answer.
	lose func(wire.Op) bool
	// queue has the host hold native sandboxes. limits are those of the service of jobs.
	queue  bool
	limits jobs.Limits
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{dir: t.TempDir(), host: &fake.Host{}, guests: map[string]*guest{}}
}

// service is one process that uses a world.
type service struct {
	*engine.Engine
	store *store.Store
	stop  func()
}

// start starts a service with at most most sandboxes.
func (w *world) start(t *testing.T, most int) *service {
	t.Helper()
	st, err := store.Open(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	v, err := volumes.Open(filepath.Join(w.dir, "workspaces"), volumes.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.Open(t.Context(), engine.Options{
		Driver: fake.New(fake.Options{Host: w.host, Serve: w.serve, Queue: w.queue}), Store: st, Volumes: v,
		Images:  testenv.Images(t, filepath.Join(w.dir, "images")),
		JobsDir: filepath.Join(w.dir, "jobs"), Jobs: w.limits, DefaultTemplate: "default",
		Templates: []scheduler.Template{{
			Name: "default", Spec: runtime.Spec{Image: runtime.Image{Ref: "test/image:latest"}},
			Pool: pool.Settings{Min: 1, Max: 10, Rate: 1000, Parallel: 2, MaxAge: time.Hour},
		}},
		Limits: engine.Limits{
			TTL: time.Hour, MaxTTL: 2 * time.Hour, Idle: time.Hour, Timeout: time.Minute, MaxTimeout: time.Hour,
			MaxOutput: 1 << 20, OutputCap: 2 << 20, Wait: 30 * time.Second, MaxSandboxes: most, MaxMemory: 1 << 40, Queue: 100,
		},
		Program: engine.Program{Build: "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	s := &service{Engine: e, store: st}
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// guest is the guest of a sandbox. Its background commands are "exit N", "signal", "oom", "flaky",
// which exits with 75 before its third attempt, "refused", "lost", which ends the sandbox, "hold",
// which runs until release or a kill, and "hang", which does so without output. Every other command
// writes its text and exits with 0.
type guest struct {
	fake.Guest
	w  *world
	id string

	mu       sync.Mutex
	commands map[string]*running
}

// running is a background command.
type running struct {
	argv []string
	out  string
	done chan struct{} // closed when result is set
	once sync.Once
	res  runtime.Result
}

func (r *running) end(res runtime.Result) { r.once.Do(func() { r.res = res; close(r.done) }) }

func (w *world) guest(id string) *guest {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.guests[id]
	if g == nil {
		g = &guest{w: w, id: id, commands: map[string]*running{}}
		w.guests[id] = g
	}
	return g
}

// release ends all held commands with exit code 0.
func (w *world) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.guests {
		g.mu.Lock()
		for _, r := range g.commands {
			r.end(runtime.Result{Ending: runtime.Exited})
		}
		g.mu.Unlock()
	}
}

// forget has all sandboxes forget their commands.
func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.guests {
		g.mu.Lock()
		clear(g.commands)
		g.mu.Unlock()
	}
}

// started returns the commands that were started, in order.
func (w *world) started() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.ran...)
}

func (w *world) serve(ctx context.Context, id string, conn net.Conn) {
	g, c := w.guest(id), wire.NewConn(conn)
	_, payload, err := c.ReadFrame()
	if err != nil {
		return
	}
	var q wire.Request
	if json.Unmarshal(payload, &q) != nil {
		return
	}
	w.mu.Lock()
	lose := w.lose
	w.mu.Unlock()
	if lose != nil && lose(q.Op) {
		return
	}
	switch q.Op {
	case wire.OpStart:
		g.start(c, q.Body)
	case wire.OpOutput:
		g.output(ctx, c, q.Body)
	case wire.OpKill:
		g.kill(c, q.Body)
	case wire.OpGlob:
		reply := wire.GlobReply{Items: []wire.FileInfo{}}
		for _, name := range w.files {
			reply.Items = append(reply.Items, wire.FileInfo{Name: name, Path: name, Type: "file", Size: int64(len(name))})
		}
		answer(c, wire.KindReply, reply)
	case wire.OpRead:
		var f wire.FileRequest
		if json.Unmarshal(q.Body, &f) != nil || strings.HasPrefix(f.Path, "refused") {
			answer(c, wire.KindFailure, wire.Failure{Code: wire.PermissionDenied, Message: "not readable"})
			return
		}
		answer(c, wire.KindStarted, wire.FileInfo{Name: f.Path, Path: f.Path, Type: "file", Size: int64(len(f.Path))})
		_ = c.WriteFrame(wire.KindData, []byte(f.Path))
		answer(c, wire.KindReply, struct{}{})
	case wire.OpWrite:
		answer(c, wire.KindFailure, wire.Failure{Code: wire.ResourceExhausted, Message: "no space is left"})
	case wire.OpShells:
		answer(c, wire.KindReply, []wire.Shell{})
	default:
		g.Answer(ctx, conn, payload)
	}
}

func answer(c *wire.Conn, kind wire.Kind, v any) {
	b, _ := json.Marshal(v)
	_ = c.WriteFrame(kind, b) // a failure means that the host is gone
}

func (g *guest) start(c *wire.Conn, body json.RawMessage) {
	var q wire.Command
	if json.Unmarshal(body, &q) != nil {
		return
	}
	text := q.Argv[len(q.Argv)-1]
	if text == "refused" {
		answer(c, wire.KindFailure, wire.Failure{Code: wire.InvalidArgument, Field: "argv", Message: "program not found"})
		return
	}
	r := &running{argv: q.Argv, done: make(chan struct{})}
	g.mu.Lock()
	g.commands[q.ID] = r
	g.mu.Unlock()
	g.w.mu.Lock()
	g.w.ran = append(g.w.ran, text)
	g.w.mu.Unlock()
	word, number, _ := strings.Cut(text, " ")
	switch word {
	case "hold":
		r.out = "held\n"
	case "hang": // runs, and has written nothing
	case "lost":
		g.w.host.Kill(g.id)
		return
	case "exit":
		n, _ := strconv.Atoi(number)
		r.end(runtime.Result{Ending: runtime.Exited, ExitCode: n})
	case "flaky":
		code := 75
		if q.Env["ORCHESTRATOR_JOB_ATTEMPT"] == "3" {
			code = 0
		}
		r.end(runtime.Result{Ending: runtime.Exited, ExitCode: code})
	case "signal":
		r.end(runtime.Result{Ending: runtime.Signalled, Signal: 9, ExitCode: -1})
	case "oom":
		r.end(runtime.Result{Ending: runtime.OOM, ExitCode: -1})
	default:
		r.out = text
		r.end(runtime.Result{Ending: runtime.Exited})
	}
	answer(c, wire.KindReply, wire.Shell{ID: q.ID, Argv: q.Argv, StartedAt: time.Now()})
}

func (g *guest) find(c *wire.Conn, id string) *running {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.commands[id]
	if r == nil {
		answer(c, wire.KindFailure, wire.Failure{Code: wire.NotFound, Message: "no such shell"})
	}
	return r
}

func (g *guest) output(ctx context.Context, c *wire.Conn, body json.RawMessage) {
	var q wire.Output
	if json.Unmarshal(body, &q) != nil {
		return
	}
	r := g.find(c, q.ID)
	if r == nil {
		return
	}
	text := ""
	if q.Stream == wire.Stdout {
		text = r.out
	}
	if q.Offset < int64(len(text)) {
		answer(c, wire.KindChunk, wire.Chunk{Offset: q.Offset})
		_ = c.WriteFrame(wire.KindData, []byte(text[q.Offset:]))
	}
	select {
	case <-r.done:
		end := wire.OutputEnd{Next: int64(len(text)), EOF: true, Shell: wire.Shell{ID: q.ID, Argv: r.argv, Result: &r.res}}
		answer(c, wire.KindReply, end)
	case <-ctx.Done():
	}
}

func (g *guest) kill(c *wire.Conn, body json.RawMessage) {
	var q wire.Kill
	if json.Unmarshal(body, &q) != nil {
		return
	}
	r := g.find(c, q.ID)
	if r == nil {
		return
	}
	r.end(runtime.Result{Ending: runtime.Cancelled, ExitCode: -1})
	answer(c, wire.KindReply, wire.Shell{ID: q.ID, Argv: r.argv, Result: &r.res})
}

// texts returns commands for the sandbox's shell.
func texts(list ...string) []v1.JobCommand {
	out := make([]v1.JobCommand, 0, len(list))
	for _, c := range list {
		out = append(out, v1.JobCommand{Exec: v1.Exec{Command: c}})
	}
	return out
}

func (s *service) create(t *testing.T, p caller.Principal, r v1.JobRequest) v1.Job {
	t.Helper()
	j, err := s.Jobs.Create(t.Context(), p, r)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// await waits for a job's end and returns it with its commands.
func (s *service) await(t *testing.T, p caller.Principal, id string) (v1.Job, []v1.JobResult) {
	t.Helper()
	j, err := s.Jobs.Get(t.Context(), p, id, 30*time.Second)
	if err != nil || j.State != "ended" {
		t.Fatalf("job = %+v, %v; want it ended", j, err)
	}
	list, err := s.Jobs.Results(t.Context(), p, id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return j, list
}

var eventually = testenv.Eventually
