package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// outcome is a call's ending and evidence that it did what it should.
type outcome struct{ ending, seen string }

// call is one row of the table: a call and its expected outcome.
type call struct {
	name, ending string
	do           func(context.Context, *service) (outcome, error)
}

// calls returns the calls of the demonstration in order.
func calls() []call {
	return append([]call{
		{"a shell pipeline", "exited 0", pipeline},
		{"Python over a file in a workspace", "exited 0", python},
		{"a background shell, followed to its end", "exited 0", background},
		{"a download, with the network none", "exited 7", network},
		{"1 GiB of memory under a cap of 384 MiB", "oom", memory},
		{"a fork bomb", "pids", bomb},
		{"a timeout with a daemonised child", "timeout", timeout},
		{"kill -9 of the orchestrator under a shell", "exited 0", crash},
	}, governed()...)
}

// outcomeOf describes a result in words.
func outcomeOf(r v1.ExecResult, seen string) outcome {
	ending := r.Ending
	if ending == "exited" {
		ending += fmt.Sprintf(" %d", r.ExitCode)
	}
	return outcome{ending, seen}
}

// pipeline runs a pipeline of programs.
func pipeline(ctx context.Context, s *service) (outcome, error) {
	r, err := s.client.Run(ctx,
		v1.Run{Exec: v1.Exec{Command: `printf '%s\n' pear fig pear apple | sort | uniq -c | sort -rn | head -1 | xargs`}})
	if err == nil && r.Stdout != "2 pear\n" {
		err = fmt.Errorf("stdout %q, stderr %q; want 2 pear", r.Stdout, r.Stderr)
	}
	return outcomeOf(r, strings.TrimSpace(r.Stdout)), err
}

// python runs Python on a file of a workspace.
func python(ctx context.Context, s *service) (outcome, error) {
	if _, err := s.client.Workspaces.Create(ctx, "numbers"); err != nil {
		return outcome{}, err
	}
	files := s.client.Workspaces.Files("numbers")
	var table strings.Builder
	table.WriteString("n,square\n")
	for i := range 1000 {
		fmt.Fprintf(&table, "%d,%d\n", i, i*i)
	}
	if _, err := files.Write(ctx, "squares.csv", strings.NewReader(table.String()), client.WriteOptions{}); err != nil {
		return outcome{}, err
	}
	const program = `import csv
total = sum(int(r['square']) for r in csv.DictReader(open('squares.csv')))
open('total.txt', 'w').write(str(total))
print(total)
`
	r, err := s.client.Run(ctx, v1.Run{Workspace: "numbers", Exec: v1.Exec{Argv: []string{"python3", "-c", program}}})
	if err != nil {
		return outcome{}, err
	}
	body, err := files.Read(ctx, "total.txt", client.Range{})
	if err != nil {
		return outcomeOf(r, r.Stderr), err
	}
	defer body.Close()
	kept, err := io.ReadAll(body)
	if err == nil && (string(kept) != "332833500" || r.Stdout != "332833500\n") {
		err = fmt.Errorf("stdout %q, file %q; want 332833500 in both", r.Stdout, kept)
	}
	return outcomeOf(r, fmt.Sprintf("sum %s, kept in the workspace", kept)), err
}

// shell starts a command in a separate sandbox; end destroys that sandbox.
func (s *service) shell(ctx context.Context, r v1.ShellRequest) (sh v1.Shell, end func(), err error) {
	sb, err := s.client.CreateSandbox(ctx, v1.SandboxRequest{})
	if err != nil {
		return sh, nil, err
	}
	end = func() {
		_ = s.client.RemoveSandbox(context.WithoutCancel(ctx), sb.ID)
	} // down destroys the sandbox at the latest
	if sh, err = s.client.StartShell(ctx, sb.ID, r); err != nil {
		end()
	}
	return sh, end, err
}

// ending waits for a shell's result.
func (s *service) ending(ctx context.Context, id, seen string) (outcome, error) {
	var got v1.Shell
	err := until(ctx, startTime, "the shell has ended", func() (bool, error) {
		var err error
		got, err = s.client.Shell(ctx, id)
		return got.Result != nil, err
	})
	if err != nil {
		return outcome{}, err
	}
	return outcomeOf(*got.Result, seen), nil
}

// background follows the output of a background command.
func background(ctx context.Context, s *service) (outcome, error) {
	sh, end, err := s.shell(ctx,
		v1.ShellRequest{Exec: v1.Exec{Command: "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"}})
	if err != nil {
		return outcome{}, err
	}
	defer end()
	var out bytes.Buffer
	if _, err := s.client.Follow(ctx, sh.ID, client.FollowRequest{}, &out); err != nil {
		return outcome{}, err
	}
	if n := strings.Count(out.String(), "line"); n != 5 {
		return outcome{}, fmt.Errorf("got %d lines, want 5: %q", n, out.String())
	}
	return s.ending(ctx, sh.ID, "5 lines, as they were written")
}

// network tries to reach an address without egress rules.
func network(ctx context.Context, s *service) (outcome, error) {
	r, err := s.client.Run(ctx, v1.Run{Exec: v1.Exec{Command: "curl -sS --max-time 5 http://192.0.2.1/"}})
	return outcomeOf(r, firstLine(r.Stderr)), err
}

// memory exceeds the memory limit.
func memory(ctx context.Context, s *service) (outcome, error) {
	r, err := s.client.Run(ctx, v1.Run{Exec: v1.Exec{Argv: []string{"python3", "-c", "x = b'x' * (1 << 30)"}}})
	return outcomeOf(r, fmt.Sprintf("peak %d MiB", r.Usage.MemoryPeakBytes>>20)), err
}

// bomb exceeds the limit of processes.
func bomb(ctx context.Context, s *service) (outcome, error) {
	r, err := s.client.Run(ctx,
		v1.Run{Exec: v1.Exec{Argv: []string{"python3", "-c", "import os\nwhile True: os.fork()", mark()}}})
	if left := marked(mark()); err == nil && len(left) > 0 {
		err = fmt.Errorf("%d processes are left, want none", len(left))
	}
	return outcomeOf(r, fmt.Sprintf("%d processes at the cap, none afterwards", r.Usage.PidsPeak)), err
}

// timeout exceeds its timeout, with a daemon that must not survive it.
func timeout(ctx context.Context, s *service) (outcome, error) {
	word := mark()
	command := "(setsid env -i bash -c 'exec -a " + word + " sleep 1000' </dev/null >/dev/null 2>&1 &); sleep 1000"
	type answer struct {
		r   v1.ExecResult
		err error
	}
	answered := make(chan answer, 1)
	go func() { // the result is received below
		r, err := s.client.Run(ctx, v1.Run{Exec: v1.Exec{Command: command, TimeoutMS: 2000}})
		answered <- answer{r, err}
	}()
	before := 0
	for {
		select {
		case a := <-answered:
			left := marked(word)
			if a.err == nil && (before == 0 || len(left) > 0) {
				a.err = fmt.Errorf("the host saw the daemon %d times before and %d processes after", before, len(left))
			}
			return outcomeOf(a.r, "the host saw the daemon, which is gone now"), a.err
		case <-time.After(pollTime):
			before += len(marked(word))
		}
	}
}

// crash kills the orchestrator while a shell writes and restarts it. The shell must keep running,
// and no byte of its output may be missing.
func crash(ctx context.Context, s *service) (outcome, error) {
	const last = 2000
	command := fmt.Sprintf("for ((i = 1; i <= %d; i++)); do echo $i; ((i %% 20)) || sleep 0.01; done", last)
	sh, end, err := s.shell(ctx, v1.ShellRequest{Lossless: true, Exec: v1.Exec{Command: command}})
	if err != nil {
		return outcome{}, err
	}
	defer end()
	var want bytes.Buffer
	for i := range last {
		fmt.Fprintln(&want, i+1)
	}
	k := &killer{ctx: ctx, s: s}
	if _, err := s.client.Follow(ctx, sh.ID, client.FollowRequest{}, k); err != nil {
		return outcome{}, err
	}
	if !k.done || !bytes.Equal(k.got.Bytes(), want.Bytes()) {
		return outcome{}, errors.New("the output is not what was written")
	}
	return s.ending(ctx, sh.ID, fmt.Sprintf("%d lines, none missing; back in %s", last, round(k.took)))
}

// killer collects output and kills the service in the middle.
type killer struct {
	ctx  context.Context // of the call that made it
	s    *service
	got  bytes.Buffer
	done bool
	took time.Duration // from the kill until the next process answers
}

// Write kills the service once, after a part has arrived.
func (k *killer) Write(p []byte) (int, error) {
	if k.got.Write(p); k.done || k.got.Len() < 1000 {
		return len(p), nil
	}
	k.done = true
	began := time.Now()
	if err := k.s.kill(); err != nil {
		return 0, err
	}
	err := k.s.start(k.ctx)
	k.took = time.Since(began)
	return len(p), err
}

// firstLine returns the first line of a text.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
