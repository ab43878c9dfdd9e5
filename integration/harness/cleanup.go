package harness

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// cleanUp removes everything the test left and fails the test for what remains. It shows the log if
// the test has failed.
func (s *Server) cleanUp() {
	defer s.showLog()
	defer s.Client.Close()
	s.note()
	s.down()
	if left := s.leftovers(); len(left) > 0 {
		s.t.Errorf("left on the machine:\n  %s", strings.Join(left, "\n  "))
		s.force()
	}
}

// down destroys all sandboxes, through the server if it answers, otherwise with the command line.
func (s *Server) down() {
	if s.proc != nil {
		select {
		case <-s.proc.ended:
			s.t.Errorf("the server has ended by itself: %s", s.proc.cmd.ProcessState)
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), Short)
		err := s.Client.Down(ctx)
		cancel()
		if err == nil {
			select {
			case <-s.proc.ended:
				s.proc = nil
				return
			case <-time.After(Long):
			}
			s.t.Errorf("the server did not end within %s of being taken down", Long)
			_ = s.proc.cmd.Process.Signal(syscall.SIGQUIT)
			time.Sleep(time.Second)
		}
		_ = s.proc.cmd.Process.Kill()
		<-s.proc.ended
		s.proc = nil
	}
	if _, err := os.Stat(filepath.Join(s.dir, "state.db")); err != nil {
		return // the server never started
	}
	if live, _ := s.Rows(s.t); len(live) == 0 && len(s.Cells()) == 0 {
		return // the engine may be unreachable
	}
	if got := s.CLI(s.t, "down"); got.Code != 0 {
		s.t.Errorf("down: exit code %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
}

// note records the cgroup names of current sandboxes, so that their cgroups can be looked for
// later.
func (s *Server) note() {
	for _, id := range s.Cells() {
		s.mu.Lock()
		if s.words[id] == "" {
			s.words[id] = id
		}
		s.mu.Unlock()
	}
}

// Cells returns the ids of sandboxes that have a directory in the state directory.
func (s *Server) Cells() []string {
	var ids []string
	for _, dir := range []string{"cells", "oci", "docker/sandboxes", "containerd/cells"} {
		entries, _ := os.ReadDir(filepath.Join(s.dir, dir))
		for _, e := range entries {
			if isID(e.Name()) && !slices.Contains(ids, e.Name()) {
				ids = append(ids, e.Name())
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// isID reports whether a name is a sandbox id: a UUID.
func isID(name string) bool { return len(name) == 36 && strings.Count(name, "-") == 4 }

// leftovers returns what the server left on the machine, after waiting for processes that are
// ending.
func (s *Server) leftovers() []string {
	var left []string
	for end := time.Now().Add(Short); ; time.Sleep(rare) {
		if left = s.leftNow(); len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// leftNow returns what the server has left on the machine now.
func (s *Server) leftNow() []string {
	var left []string
	for _, m := range MountsUnder(s.t, s.dir) {
		left = append(left, "mount "+m)
	}
	if pids := s.ofState(); len(pids) > 0 {
		left = append(left, "processes"+Describe(pids))
	}
	words := s.promised()
	s.mu.Lock()
	for id, word := range s.words {
		words = append(words, id, word)
	}
	s.mu.Unlock()
	for _, c := range cgroupsNamed(words) {
		left = append(left, "cgroup "+c)
	}
	for _, c := range s.containers() {
		left = append(left, "container "+c)
	}
	if s.Runtime == "containerd" {
		for _, c := range s.recorded() {
			left = append(left, "container "+c)
		}
	}
	return append(left, filesLeft(s.dir)...)
}

// filesLeft returns sockets and files named after a sandbox in a state directory.
func filesLeft(dir string) []string {
	var left []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // others come and go
		}
		if rel, _ := filepath.Rel(dir, path); rel == "images" || rel == "workspaces" || rel == "jobs" {
			return fs.SkipDir
		}
		if d.Type()&fs.ModeSocket != 0 {
			left = append(left, "socket "+path)
		}
		if isID(d.Name()) {
			left = append(left, "file "+path)
		}
		return nil
	})
	return left
}

// Left returns what a stopped server left on the machine, after waiting for processes that are
// ending.
func (s *Server) Left() []string { return s.leftovers() }

// promised reads the ids of all sandboxes from the database. No server may run.
func (s *Server) promised() []string {
	if _, err := os.Stat(filepath.Join(s.dir, "state.db")); err != nil {
		return nil
	}
	live, ended := s.Rows(s.t)
	return append(live, ended...)
}

// Rows reads the database of a stopped server: the sandboxes recorded as live, and the leases
// recorded as ended.
func (s *Server) Rows(tb testing.TB) (live, ended []string) {
	tb.Helper()
	if s.proc != nil {
		tb.Fatal("the server runs: its database is its own")
	}
	ctx := context.Background()
	st, err := store.Open(ctx, s.dir)
	if err != nil {
		tb.Fatal(err)
	}
	defer st.Close()
	rows, err := st.Live(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	for _, r := range rows {
		live = append(live, r.ID)
	}
	over, err := st.Leases(ctx, "local", true, 1000)
	if err != nil {
		tb.Fatal(err)
	}
	for _, r := range over {
		if r.State.Ended() {
			ended = append(ended, r.ID)
		}
	}
	return live, ended
}

// force kills processes by PID, then removes containers and mounts that a failed program left, so
// that the next test does not find them.
func (s *Server) force() {
	for _, pid := range s.ofState() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, c := range s.containers() {
		Docker(s.t, "rm", "--force", c)
	}
	mounts := MountsUnder(s.t, s.dir)
	slices.Reverse(mounts)
	for _, m := range mounts {
		_ = syscall.Unmount(m, 0)
	}
}

// logLines is the number of lines of a server's log that a failed test shows.
const logLines = 80

// showLog prints the end of the server's log if the test has failed, and removes the log.
func (s *Server) showLog() {
	if s.t.Failed() {
		s.t.Logf("the end of the server's log (%s):\n%s", s.Runtime, tail(s.Log(), logLines))
	}
	if err := os.Remove(s.log.Name()); err != nil {
		s.t.Errorf("remove the log: %v", err)
	}
	if err := s.log.Close(); err != nil {
		s.t.Error(fmt.Errorf("close the log: %w", err))
	}
}
