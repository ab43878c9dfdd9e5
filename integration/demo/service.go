package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
)

// Timeouts of steps that take moments.
var (
	startTime = testtime.Scale(time.Minute)
	downTime  = testtime.Scale(time.Minute)
)

const (
	pollTime = 20 * time.Millisecond
	logTail  = 4 << 10
)

const settings = `listen: 'unix:%[1]s/o.sock'
state_dir: '%[1]s/s'
runtime: oci
templates:
  default:
    limits: {memory: 384MiB, cpus: 1, pids: 160}
    pool: {min: 2, max: 8}
`

// service is the orchestrator as a separate process with a separate state directory.
type service struct {
	bin, dir, config string
	client           *client.Client
	log              *os.File
	cmd              *exec.Cmd     // nil while none runs
	ended            chan struct{} // closed when the process has exited
}

// newService prepares a service in a new directory. It starts nothing.
func newService(ctx context.Context, bin string) (s *service, err error) {
	dir, err := os.MkdirTemp("", "demo")
	if err != nil {
		return nil, err
	}
	s = &service{bin: bin, dir: dir, config: filepath.Join(dir, "config.yaml")}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove(ctx))
		}
	}()
	err = os.WriteFile(s.config, fmt.Appendf(nil, settings, dir), 0o600)
	if err != nil {
		return nil, err
	}
	if s.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	s.client, err = client.New(client.Options{Address: "unix:" + dir + "/o.sock"})
	return s, err
}

// command returns the program with the demonstration's configuration.
func (s *service) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.bin, append(args, "--config", s.config)...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C goes to this program, which cleans up
	return cmd
}

// importImage imports the sandbox image.
func (s *service) importImage(ctx context.Context, archive string) error {
	if err := s.command(ctx, "image", "import", archive).Run(); err != nil {
		return fmt.Errorf("import %s: %w%s", archive, err, s.said())
	}
	return nil
}

// start starts the service and waits until it can serve.
func (s *service) start(ctx context.Context) error {
	cmd := s.command(context.WithoutCancel(ctx), "serve")
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { // kill and down wait for it
		_ = cmd.Wait()
		close(ended)
	}()
	s.cmd, s.ended = cmd, ended
	return until(ctx, startTime, "the service answers", func() (bool, error) {
		select {
		case <-ended:
			return false, fmt.Errorf("the service ended: %s%s", cmd.ProcessState, s.said())
		default:
		}
		_, err := s.client.Version(ctx)
		return err == nil, nil
	})
}

// warm waits until the pool is full.
func (s *service) warm(ctx context.Context) error {
	return until(ctx, startTime, "sandboxes are warm", func() (bool, error) {
		pools, err := s.client.Pools(ctx)
		return err == nil && len(pools) == 1 && pools[0].Warm >= pools[0].Min, err
	})
}

// kill ends the service as a crash would.
func (s *service) kill() error {
	if err := s.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the service: %w", err)
	}
	<-s.ended
	s.cmd = nil
	return nil
}

// down destroys everything and stops the service; if the service does not answer, the command line
// does it. It does not depend on the demonstration's timeout.
func (s *service) down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTime)
	defer cancel()
	if s.cmd != nil {
		err := s.client.Down(ctx)
		if err == nil {
			select {
			case <-s.ended:
				s.cmd = nil
				return nil
			case <-ctx.Done():
			}
		}
		_ = s.cmd.Process.Kill() // it may have exited
		<-s.ended
		s.cmd = nil
	}
	if _, err := os.Stat(filepath.Join(s.dir, "s", "state.db")); err != nil {
		return nil
	}
	if err := s.command(ctx, "down").Run(); err != nil {
		return fmt.Errorf("orchestrator down: %w%s", err, s.said())
	}
	return nil
}

// remove stops what runs and removes the directory.
func (s *service) remove(ctx context.Context) error {
	if err := s.down(ctx); err != nil {
		return fmt.Errorf("%w; its state is in %s", err, s.dir)
	}
	if s.log != nil {
		_ = s.log.Close()
	}
	if left := s.left(); len(left) > 0 {
		return fmt.Errorf("left on the machine: %s", strings.Join(left, ", "))
	}
	return os.RemoveAll(s.dir)
}

// left returns mounts below the directory and processes of the calls.
func (s *service) left() []string {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var left []string
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], s.dir+"/") {
			left = append(left, "mount "+f[4])
		}
	}
	for _, pid := range marked(mark()) {
		left = append(left, fmt.Sprintf("process %d", pid))
	}
	return left
}

// said returns the end of the log.
func (s *service) said() string {
	b, err := os.ReadFile(s.log.Name())
	if err != nil || len(b) == 0 {
		return ""
	}
	return "\n" + string(b[max(0, len(b)-logTail):])
}

// mark returns a word in the command line of every process that a call deliberately leaves behind,
// and of no other process on this machine.
func mark() string { return fmt.Sprintf("demo-%d-daemon", os.Getpid()) }

// marked returns the host PIDs with a word in their command line.
func marked(word string) []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.Contains(line, []byte(word)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// until polls until ok returns true, for at most d.
func until(ctx context.Context, d time.Duration, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not within %s: %s", d, what))
	defer cancel()
	for {
		if done, err := ok(); done || err != nil {
			return err
		}
		select {
		case <-time.After(pollTime):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
