package harness

import (
	"bytes"
	"context"
	"encoding/json"
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
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// Options configure a Server. Only Runtime is required.
type Options struct {
	Runtime string // "oci", "docker" or "containerd"
	// Bin is the program; empty means the one without failpoints.
	Bin string
	// Config is YAML appended to the harness's configuration, such as templates and leases. Empty
	// means DefaultConfig.
	Config string
	// Docker configures the docker runtime; empty means the test engine.
	Docker string
	// Mode is how the engine is reached; empty means "auto".
	Mode string
	// Root is the parent of the state directory; empty means a temporary directory.
	Root string
	// Seed provides the image; nil starts without any image.
	Seed *Seed
	// Images is the directory of the image store, used through a symlink; empty means in the state
	// directory.
	Images string
}

// DefaultConfig keeps one small sandbox warm.
const DefaultConfig = `
templates:
  default:
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 1, max: 12, rate: 10, parallel: 2}
`

// Server is a service under test. Its methods are for the test's goroutine, except Client, Dir and
// those that only read.
type Server struct {
	Runtime string
	Client  *client.Client

	t       testing.TB
	options Options
	bin     string
	root    string // parent of the paths below
	dir     string
	socket  string
	config  string
	log     *os.File
	args    []string // arguments of the next start

	mu    sync.Mutex
	words map[string]string // sandbox id → word in its cgroup paths
	proc  *process
}

// process is one run of the program.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed after Wait
}

// New prepares a server and registers the cleanup of everything it will create.
func New(tb testing.TB, o Options) *Server {
	tb.Helper()
	s := &Server{t: tb, Runtime: o.Runtime, bin: o.Bin, root: o.Root, options: o, words: map[string]string{}}
	if s.bin == "" {
		s.bin = Need(tb, EnvBin)
	}
	if s.root == "" {
		s.root = TempDir(tb)
	}
	s.dir, s.socket = filepath.Join(s.root, "s"), filepath.Join(s.root, "o.sock")
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	if o.Seed != nil {
		archives := make([]string, 0, 1+len(o.Seed.More))
		for _, name := range append([]string{EnvArchive}, o.Seed.More...) {
			archives = append(archives, Need(tb, name))
		}
		if err := o.Seed.fill(archives...); err != nil {
			tb.Fatal(err)
		}
		store := filepath.Join(s.dir, "images")
		if o.Images != "" {
			if err := os.Symlink(o.Images, store); err != nil {
				tb.Fatal(err)
			}
			store = o.Images
		}
		if err := o.Seed.plant(store); err != nil {
			tb.Fatal(err)
		}
	}
	s.writeConfig(o)
	var err error
	if s.log, err = os.CreateTemp("", "serve-*.log"); err != nil {
		tb.Fatal(err)
	}
	if s.Client, err = client.New(client.Options{Address: "unix:" + s.socket}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.cleanUp)
	return s
}

// For reports failures to a subtest until the returned function is called. Parallel subtests cannot
// share the server.
func (s *Server) For(tb testing.TB) (back func()) {
	tb.Helper()
	was := s.t
	s.t = tb
	return func() { s.t = was }
}

// Run calls New and Start.
func Run(tb testing.TB, o Options) *Server {
	tb.Helper()
	s := New(tb, o)
	s.Start()
	return s
}

// writeConfig writes the configuration file for the next start.
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
	WriteFile(s.t, s.config, fmt.Sprintf(`listen: 'unix:%s'
state_dir: '%s'
runtime: %s
docker: {host: '%s', mode: %s}
containerd: {address: '%s'}
log: {level: debug}
%s`, s.socket, s.dir, o.Runtime, o.Docker, o.Mode, containerd, o.Config))
}

// Configure replaces the part after the harness's own configuration, for the next start.
func (s *Server) Configure(config string) {
	o := s.options
	o.Config = config
	s.writeConfig(o)
}

// Dir returns the state directory, Socket the listening socket, Config the configuration file.
func (s *Server) Dir() string    { return s.dir }
func (s *Server) Socket() string { return s.socket }
func (s *Server) Config() string { return s.config }

// Begin starts the program without waiting for it. env is added to the environment.
func (s *Server) Begin(env ...string) {
	s.t.Helper()
	if s.proc != nil {
		s.t.Fatal("the server runs already")
	}
	cmd := exec.Command(s.bin, append([]string{"serve", "--config", s.config}, s.args...)...)
	s.args = nil
	cmd.Env = append(s.environment(), env...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C goes to the test only
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() { // every caller waits for ended
		_ = cmd.Wait()
		close(p.ended)
	}()
	s.proc = p
}

// With sets extra arguments for the next start.
func (s *Server) With(args ...string) { s.args = args }

// environment returns the test's environment without the variables that configure the program.
func (s *Server) environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ORCHESTRATOR_") && !strings.HasPrefix(e, "DOCKER_") {
			env = append(env, e)
		}
	}
	return env
}

// Start starts the program and waits until it serves calls: see Ready.
func (s *Server) Start(env ...string) {
	s.t.Helper()
	s.Begin(env...)
	s.Ready()
}

// Ready waits until the server answers calls. It does not wait for templates: some tests import the
// image later, or check what callers get without one.
func (s *Server) Ready() {
	s.t.Helper()
	p := s.proc
	Eventually(s.t, Long, "the server is ready", func() bool {
		select {
		case <-p.ended:
			s.t.Fatalf("the server ended before it was ready: %s", p.cmd.ProcessState)
		default:
		}
		return s.runs()
	})
}

// runs reports whether /readyz says of at least one template that it is ready, or why it is not.
func (s *Server) runs() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a, err := s.ask(ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return false
	}
	var got v1.NotReady
	return a.Status == http.StatusOK || json.Unmarshal(a.Body, &got) == nil && len(got.Templates) > 0
}

// Ended waits until the process exits and returns its state.
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
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // writes its goroutines to the log
		s.t.Fatalf("the server did not end within %s", Long)
	}
	s.proc = nil
	s.note()
	return p.cmd.ProcessState
}

// Pid returns the PID of the running process.
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

// Kill9 kills the process, as a crash would.
func (s *Server) Kill9() {
	s.t.Helper()
	s.Signal(syscall.SIGKILL)
	s.Ended()
}

// Term asks the process to shut down gracefully and waits until it exits.
func (s *Server) Term() {
	s.t.Helper()
	s.Signal(syscall.SIGTERM)
	if state := s.Ended(); !state.Success() {
		s.t.Errorf("after SIGTERM the server ended with %s", state)
	}
}

// Log returns what the server has written so far.
func (s *Server) Log() string {
	b, err := os.ReadFile(s.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tail returns the last lines of a log, for messages.
func tail(text string, lines int) string {
	all := bytes.SplitAfter([]byte(text), []byte{'\n'})
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return string(bytes.Join(all, nil))
}
