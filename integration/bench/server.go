package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const (
	startTime = 90 * time.Second // a start, a full pool, a complete cleanup
	pollTime  = 2 * time.Millisecond
)

// server is the measured program as a separate process.
type server struct {
	bin, root      string
	config, socket string
	containerd     string // its socket
	client         *client.Client
	http           *http.Client // for what the client does not support
	log            *os.File

	cmd   *exec.Cmd
	ended chan struct{} // closed after Wait
}

// newServer prepares a server with its state below root. It starts nothing.
func newServer(bin, root, containerd string) (*server, error) {
	s := &server{
		bin:        bin,
		root:       root,
		containerd: containerd,
		config:     filepath.Join(root, "config.yaml"),
		socket:     filepath.Join(root, "o.sock"),
	}
	var err error
	if s.client, err = client.New(client.Options{Address: "unix:" + s.socket}); err != nil {
		return nil, err
	}
	var d net.Dialer
	s.http = &http.Client{Transport: &http.Transport{
		ReadBufferSize: 256 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", s.socket)
		},
	}}
	s.log, err = os.Create(filepath.Join(root, "serve.log"))
	return s, err
}

// configure writes the configuration for the next start. The default template keeps warm sandboxes,
// cold is the same without, and wide has two processors. more is further configuration.
func (s *server) configure(runtime, engine string, warm, most int, more ...string) error {
	template := func(cpus, warm, most int) string {
		return fmt.Sprintf("{limits: {memory: 192MiB, pids: 160, cpus: %d}, "+
			"pool: {min: %d, max: %d, rate: 1000, parallel: 2}, "+
			"entrypoint: [/usr/local/lib/orchestrator/entrypoint.sh]}", cpus, warm, most)
	}
	text := fmt.Sprintf(`listen: 'unix:%s'
state_dir: '%s'
runtime: %s
docker: {host: '%s'}
containerd: {address: '%s'}
log: {level: warn}
admission: {max_sandboxes: 120}
egress: {private: [{hosts: [127.0.0.1, localhost], ranges: [127.0.0.0/8]}]}
templates:
  default: %s
  cold: %s
  wide: %s
`, s.socket, filepath.Join(s.root, "s"), runtime, engine, s.containerd,
		template(1, warm, most), template(1, 0, 20), template(2, 0, 4))
	return os.WriteFile(s.config, []byte(text+strings.Join(more, "")), 0o600)
}

// command returns a run of the program with that configuration.
func (s *server) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, s.bin, append(args, "--config", s.config)...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ORCHESTRATOR_") && !strings.HasPrefix(e, "DOCKER_") {
			c.Env = append(c.Env, e)
		}
	}
	c.Stdout, c.Stderr = s.log, s.log
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C goes to the bench only
	return c
}

// start starts the program and returns the time until it was ready.
func (s *server) start(ctx context.Context) (time.Duration, error) {
	c := s.command(context.WithoutCancel(ctx), "serve")
	began := time.Now()
	if err := c.Start(); err != nil {
		return 0, err
	}
	s.cmd, s.ended = c, make(chan struct{})
	go func(done chan struct{}) { // stop waits for it
		_ = c.Wait()
		close(done)
	}(s.ended)
	err := s.poll(ctx, "the server is ready", pollTime, func() (bool, error) {
		select {
		case <-s.ended:
			return false, fmt.Errorf("it ended: %s\n%s", c.ProcessState, s.tail())
		default:
		}
		return s.ready(ctx), nil
	})
	return time.Since(began), err
}

// ready reports whether the server can serve calls.
func (s *server) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://orchestrator/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// poll polls until ok returns true, for at most startTime.
func (s *server) poll(ctx context.Context, what string, pause time.Duration, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("not within %s: %s", startTime, what))
	defer cancel()
	for {
		is, err := ok()
		if is || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pool returns the state of a template's pool.
func (s *server) pool(ctx context.Context, template string) (v1.Pool, error) {
	all, err := s.client.Pools(ctx)
	if err != nil {
		return v1.Pool{}, err
	}
	for _, p := range all {
		if p.Template == template {
			return p, nil
		}
	}
	return v1.Pool{}, fmt.Errorf("template %s has no pool", template)
}

// full waits until the pool holds n warm sandboxes and creates no more.
func (s *server) full(ctx context.Context, n int) error {
	return s.poll(ctx, fmt.Sprintf("%d sandboxes are warm", n), 5*time.Millisecond, func() (bool, error) {
		p, err := s.pool(ctx, "default")
		return p.Warm >= n && p.Creating == 0, err
	})
}

// quiet waits until the pool is full and nothing is leased, so that no creation or removal affects
// the measurement.
func (s *server) quiet(ctx context.Context, n int) error {
	return s.poll(ctx, fmt.Sprintf("%d sandboxes are warm and none leased", n), 5*time.Millisecond, func() (bool, error) {
		p, err := s.pool(ctx, "default")
		return p.Warm >= n && p.Creating == 0 && p.Leased == 0, err
	})
}

// kill kills the process as a crash would.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.ended
	s.http.CloseIdleConnections()
	s.client.Close()
}

// down destroys everything and ends the process, through the command line if the server fails.
// Without a process it does nothing.
func (s *server) down(ctx context.Context) error {
	if s.cmd == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*startTime)
	defer cancel()
	err := s.client.Down(ctx)
	if err == nil {
		select {
		case <-s.ended:
		case <-time.After(startTime):
			err = errors.New("the server does not end")
		}
	}
	if err != nil {
		s.kill()
		if err := s.command(ctx, "down").Run(); err != nil {
			return fmt.Errorf("take it down: %w\n%s", err, s.tail())
		}
	}
	s.http.CloseIdleConnections()
	s.client.Close()
	s.cmd = nil
	return nil
}

// tail returns the end of the log.
func (s *server) tail() string {
	b, _ := os.ReadFile(s.log.Name())
	return string(b[max(0, len(b)-2000):])
}

// pid returns the PID of the server.
func (s *server) pid() int { return s.cmd.Process.Pid }
