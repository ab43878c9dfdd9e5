package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// Options of a Server; the zero value but for Runtime is good.
type Options struct {
	Runtime string // "oci", "docker" or "containerd"
	// Bin is the program; empty takes the one without fault points.
	Bin string
	// Config is YAML after what the harness writes: templates, leases, ….
	// Empty takes DefaultConfig.
	Config string
	// Docker configures the docker runtime; empty is the engine of the tests.
	Docker string
	// Mode is how the engine is reached: "auto" where it is empty.
	Mode string
	// Root is where the state directory is made; empty is a folder of the test.
	Root string
	// Seed has the image; nil starts with no image at all.
	Seed *Seed
	// Images is where the image store lies, by a symbolic link; empty is in the
	// state directory.
	Images string
}

// DefaultConfig keeps one small sandbox warm.
const DefaultConfig = `
templates:
  default:
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 1, max: 12, rate: 10, parallel: 2}
`

// Server is a service under test. Its methods are for the test's goroutine,
// but for Client, Dir and those that only read.
type Server struct {
	Runtime string
	Client  *client.Client

	t       testing.TB
	options Options
	bin     string
	root    string // of everything below
	dir     string
	socket  string
	config  string
	log     *os.File
	args    []string // of the next start

	mu    sync.Mutex
	words map[string]string // sandbox → what its cgroups are named by
	proc  *process
}

// process is one run of the program.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed after Wait
}

// New prepares a server and the clean-up of everything it will make.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{t: t, Runtime: o.Runtime, bin: o.Bin, root: o.Root, options: o, words: map[string]string{}}
	if s.bin == "" {
		s.bin = Need(t, EnvBin)
	}
	if s.root == "" {
		s.root = TempDir(t)
	}
	s.dir, s.socket = filepath.Join(s.root, "s"), filepath.Join(s.root, "o.sock")
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if o.Seed != nil {
		archives := []string{Need(t, EnvArchive)}
		for _, name := range o.Seed.More {
			archives = append(archives, Need(t, name))
		}
		if err := o.Seed.fill(archives...); err != nil {
			t.Fatal(err)
		}
		store := filepath.Join(s.dir, "images")
		if o.Images != "" {
			if err := os.Symlink(o.Images, store); err != nil {
				t.Fatal(err)
			}
			store = o.Images
		}
		if err := o.Seed.plant(store); err != nil {
			t.Fatal(err)
		}
	}
	s.writeConfig(o)
	var err error
	if s.log, err = os.CreateTemp("", "serve-*.log"); err != nil {
		t.Fatal(err)
	}
	if s.Client, err = client.New(client.Options{Address: "unix:" + s.socket}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.cleanUp)
	return s
}

// For makes failures those of a subtest until the function that it returns is
// called. Subtests that run at once cannot share it.
func (s *Server) For(t testing.TB) (back func()) {
	was := s.t
	s.t = t
	return func() { s.t = was }
}

// Run is New and Start.
func Run(t testing.TB, o Options) *Server {
	t.Helper()
	s := New(t, o)
	s.Start()
	return s
}

func (s *Server) writeConfig(o Options) {
	if o.Docker == "" && o.Runtime == "docker" {
		o.Docker = Need(s.t, EnvDocker)
	}
	containerd := config.DefaultContainerd
	if o.Runtime == "containerd" {
		containerd = Need(s.t, EnvContainerd)
	}
	if o.Config == "" {
		o.Config = DefaultConfig
	}
	if o.Mode == "" {
		o.Mode = "auto"
	}
	s.config = filepath.Join(s.root, "config.yaml")
	WriteFile(s.t, s.config, fmt.Sprintf("listen: 'unix:%s'\nstate_dir: '%s'\nruntime: %s\ndocker: {host: '%s', mode: %s}\ncontainerd: {address: '%s'}\nlog: {level: debug}\n%s",
		s.socket, s.dir, o.Runtime, o.Docker, o.Mode, containerd, o.Config))
}

// Configure changes what comes after the harness's own configuration, for the
// next start.
func (s *Server) Configure(config string) {
	o := s.options
	o.Config = config
	s.writeConfig(o)
}

// Dir is the state directory, Socket where it listens, Config its file.
func (s *Server) Dir() string    { return s.dir }
func (s *Server) Socket() string { return s.socket }
func (s *Server) Config() string { return s.config }

// Begin starts the program and does not wait for it. env is added to the
// environment.
func (s *Server) Begin(env ...string) {
	s.t.Helper()
	if s.proc != nil {
		s.t.Fatal("the server runs already")
	}
	cmd := exec.Command(s.bin, append([]string{"serve", "--config", s.config}, s.args...)...)
	s.args = nil
	cmd.Env = append(s.environment(), env...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for the test
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() { // ended tells; every way on waits for it
		_ = cmd.Wait()
		close(p.ended)
	}()
	s.proc = p
}

// With adds arguments to the next start.
func (s *Server) With(args ...string) { s.args = args }

// environment is ours, less what configures the program.
func (s *Server) environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ORCHESTRATOR_") && !strings.HasPrefix(e, "DOCKER_") {
			env = append(env, e)
		}
	}
	return env
}

// Start starts the program and waits until it can serve calls.
func (s *Server) Start(env ...string) {
	s.t.Helper()
	s.Begin(env...)
	s.Ready()
}

// Ready waits until calls can be served.
func (s *Server) Ready() {
	s.t.Helper()
	p := s.proc
	Eventually(s.t, Long, "the server is ready", func() bool {
		select {
		case <-p.ended:
			s.t.Fatalf("the server ended before it was ready: %s", p.cmd.ProcessState)
		default:
		}
		return s.status("/readyz") == http.StatusOK
	})
}

// status asks for a page; 0 where nobody answers.
func (s *Server) status(path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a, err := s.ask(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0
	}
	return a.Status
}

// Ended waits for the process's end and returns its state.
func (s *Server) Ended() *os.ProcessState {
	s.t.Helper()
	if s.proc == nil {
		s.t.Fatal("no server runs")
		return nil
	}
	p := s.proc
	select {
	case <-p.ended:
	case <-time.After(Long):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines go to the log
		s.t.Fatalf("the server did not end within %s", Long)
	}
	s.proc = nil
	s.note()
	return p.cmd.ProcessState
}

// Pid is the process that runs.
func (s *Server) Pid() int {
	s.t.Helper()
	if s.proc == nil {
		s.t.Fatal("no server runs")
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Signal sends a signal to the process.
func (s *Server) Signal(sig syscall.Signal) {
	s.t.Helper()
	if s.proc == nil {
		s.t.Fatal("no server runs")
	}
	if err := s.proc.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Fatal(err)
	}
}

// Kill9 kills the process as a crash would.
func (s *Server) Kill9() {
	s.t.Helper()
	s.Signal(syscall.SIGKILL)
	s.Ended()
}

// Term asks the process to hand over and waits for its end.
func (s *Server) Term() {
	s.t.Helper()
	s.Signal(syscall.SIGTERM)
	if state := s.Ended(); !state.Success() {
		s.t.Errorf("after SIGTERM the server ended with %s", state)
	}
}

// Log is what the server has written so far.
func (s *Server) Log() string {
	b, err := os.ReadFile(s.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tail is the end of a log, for messages.
func tail(text string, lines int) string {
	all := bytes.SplitAfter([]byte(text), []byte{'\n'})
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return string(bytes.Join(all, nil))
}
