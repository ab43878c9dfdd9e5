//go:build integration

// Package soak checks that drivers leave nothing behind. It runs a mixed load of one-shot calls and
// leases, with commands that succeed, fail, exceed limits, time out or are cancelled. Meanwhile it
// kills the service and restarts the engine. Afterwards the machine must have as many processes,
// mounts, cgroups, sockets, loop devices and files as before, and the service as much memory.
//
// "make test" runs a small load. "make soak" runs 2,000 calls and 200 leases on each driver and
// writes the table in docs/soak.md. It counts what is on the whole machine, which should therefore
// be idle.
package soak

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

var (
	calls  = flag.Int64("calls", 100, "one-shot calls on each driver")
	leases = flag.Int64("leases", 12, "leases on each driver")
	write  = flag.String("write", "", "write the table to `FILE`")
)

const (
	callers = 4
	// warmUp is the part of the load before the first count, which fills pools, caches and the
	// engine's own helpers.
	warmUp = 10
	// growth is how much more memory the service may have at the end: what its allocator keeps
	// between two collections.
	growth = 16 << 20
	// settle is the timeout for processes to end; steady is how long the counts must stay the same
	// to be taken.
	settle = 3 * time.Minute
	steady = 2 * time.Second
)

const config = `
leases: {idle: 5m}
admission: {wait: 2m}
templates:
  default:
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 2, max: 12, rate: 50, parallel: 2}
`

var seed harness.Seed

// table is written at the end, after head.
var table []outcome

const head = `# Soak

` + "`make soak`" + ` runs a mixed load on every driver, counts what is left, and writes this file.
Four callers at a time make one-shot calls and leases.
The commands end in these ways: success, failure, timeout with children in other sessions, the caps
on memory, processes and output, and cancellation.
The service is killed with SIGKILL at 30 % of the load.
The engine, if there is one, is stopped and started at 60 %.
Calls that run at that moment have a typed ending.
"refused" calls got an error that the service does not answer, and were retried.

*Before* is counted after a tenth of the load was run once more, so that pools and caches are full.
*After* is counted when nothing is leased and the pool is full again.
The test fails if anything is left that was not there before; only the service's memory may grow by
16 MiB.

The test counts everything in its own namespaces for processes, mounts, sockets and networks, by
name, and independently of who started it.
An engine that is stopped while it creates a container can leave files on its own disk without
knowing of them.
They have a separate row, because they cannot be removed through the engine.

`

func TestMain(m *testing.M) {
	flag.Parse()
	if code, outside := apart(); outside {
		os.Exit(code)
	}
	code := m.Run()
	if err := seed.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if *write != "" && code == 0 {
		if err := os.WriteFile(*write, []byte(head+page(table)), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// TestSoak runs the load on every driver and compares what exists before and after it.
func TestSoak(t *testing.T) {
	for _, name := range harness.AllRuntimes() {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, name)
			s := harness.New(t, harness.Options{Runtime: name, Docker: e.address(), Config: config, Seed: &seed})
			s.Start()
			o := soak(t, s, e)
			table = append(table, o)
			t.Log("\n" + page([]outcome{o}))
		})
	}
}

// outcome is one driver's part of the table.
type outcome struct {
	driver        string
	calls, leases int64
	took          time.Duration
	before, after counts
	came          map[string]int
}

// soak runs the load on one server and returns the counts.
func soak(t *testing.T, s *harness.Server, e engine) outcome {
	t.Helper()
	l := &load{client: s.Client, base: "base", came: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := s.Client.Workspaces.Create(ctx, l.base); err != nil {
		t.Fatal(err)
	}
	l.calls.Store(*calls / warmUp)
	l.leases.Store(max(3, *leases/warmUp)) // one of each kind
	l.run(ctx, callers)
	check(t, l)
	o := outcome{driver: s.Runtime, calls: *calls, leases: *leases, came: l.came}
	o.before = quiet(t, s, e, nil)

	began := time.Now()
	l.calls.Store(*calls)
	l.leases.Store(*leases)
	done := make(chan struct{})
	go func() { // waited for below
		defer close(done)
		l.run(ctx, callers)
	}()
	defer func() { cancel(); <-done }()
	all := *calls + *leases
	l.disturb(t, all*7/10, func() { s.Kill9(); s.Start() })
	l.disturb(t, all*4/10, func() { e.restart(t); ready(t, s) })
	<-done
	o.took = time.Since(began)
	check(t, l)
	o.after = quiet(t, s, e, &o.before)
	return o
}

// disturb waits until at most that much is left to do, and marks the calls that run during the
// disturbance.
func (l *load) disturb(t *testing.T, at int64, do func()) {
	t.Helper()
	harness.Eventually(t, 30*time.Minute, "enough of the load is done", func() bool { return l.left() <= at })
	l.disturbed.Add(1)
	do()
	l.calm.Add(1)
}

// check fails the test if a part of the load had an unexpected outcome.
func check(t *testing.T, l *load) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.bad) > 0 {
		t.Fatalf("%d parts of the load went wrong, want none:\n  %s",
			len(l.bad), strings.Join(l.bad[:min(len(l.bad), 20)], "\n  "))
	}
}

// ready waits until the service makes sandboxes again.
func ready(t *testing.T, s *harness.Server) {
	t.Helper()
	harness.Eventually(t, harness.Long, "sandboxes are made again", func() bool {
		pools, err := s.Client.Pools(t.Context())
		return err == nil && len(pools) == 1 && pools[0].Warm+pools[0].Leased > 0
	})
}

// quiet waits until the pool is full and nothing changes, then counts, and compares the counts with
// before.
func quiet(t *testing.T, s *harness.Server, e engine, before *counts) counts {
	t.Helper()
	harness.Eventually(t, settle, "the pool is full and nothing is leased", func() bool {
		pools, err := s.Client.Pools(t.Context())
		return err == nil && len(pools) == 1 && pools[0].Warm == pools[0].Min && pools[0].Creating == 0 &&
			pools[0].Leased == 0
	})
	var c counts
	var left []string
	rest, since := -1, time.Now() // number of processes at the last check, and since when
	for end := time.Now().Add(settle); ; time.Sleep(500 * time.Millisecond) {
		var err error
		if c, err = count(s.Pid(), s.Dir()); err != nil {
			t.Fatal(err)
		}
		c.engine, c.engineMemory, c.lost = e.objects(t)
		if before == nil { // guests start their prefork processes
			if n := len(c.processes); n != rest {
				rest, since = n, time.Now()
			}
			if time.Since(since) >= steady || time.Now().After(end) {
				return c
			}
			continue
		}
		left = nil
		for _, kind := range kinds {
			for _, name := range c.more(*before, kind) {
				left = append(left, kind+": "+name)
			}
		}
		if c.service > before.service+growth {
			left = append(left, fmt.Sprintf("memory of the service: %d bytes, before %d", c.service, before.service))
		}
		if len(left) == 0 {
			return c
		}
		if time.Now().After(end) {
			t.Errorf("want no more than before, got:\n  %s", strings.Join(left[:min(len(left), 60)], "\n  "))
			return c
		}
	}
}

// page returns the table as it is committed.
func page(all []outcome) string {
	var b strings.Builder
	b.WriteString("| what |")
	for _, o := range all {
		fmt.Fprintf(&b, " %s before | after |", o.driver)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|---|", len(all)) + "\n")
	row := func(name string, value func(counts) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, o := range all {
			fmt.Fprintf(&b, " %s | %s |", value(o.before), value(o.after))
		}
		b.WriteString("\n")
	}
	for _, kind := range kinds {
		row(kind, func(c counts) string { return fmt.Sprint(len(c.kind(kind))) })
	}
	row("descriptors of the service", func(c counts) string { return fmt.Sprint(c.descriptors) })
	row("threads of the service", func(c counts) string { return fmt.Sprint(c.threads) })
	row("memory of the service", func(c counts) string { return mib(c.service) })
	row("containers that the engine lost track of", func(c counts) string { return fmt.Sprint(c.lost) })
	row("memory of the engine", func(c counts) string { return mib(c.engineMemory) })
	row("databases on disk", func(c counts) string { return mib(c.database) })
	b.WriteString("\n| result of the load |")
	for _, o := range all {
		fmt.Fprintf(&b, " %s |", o.driver)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(all)) + "\n")
	line := func(name string, value func(outcome) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, o := range all {
			fmt.Fprintf(&b, " %s |", value(o))
		}
		b.WriteString("\n")
	}
	line("one-shot calls, leases", func(o outcome) string { return fmt.Sprintf("%d, %d", o.calls, o.leases) })
	line("time", func(o outcome) string { return o.took.Round(time.Second).String() })
	for _, name := range []string{asExpected, lost, refused} {
		line(name, func(o outcome) string { return fmt.Sprint(o.came[name]) })
	}
	return b.String()
}

// mib formats bytes in MiB.
func mib(n int64) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// script returns the path of a script that starts an engine.
func script(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs("../scripts")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// lines adds each line of a command's output as a key.
func lines(out string, prefix string, into map[string]string) {
	all := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(all)
	for _, line := range all {
		if line != "" {
			into[prefix+line] = ""
		}
	}
}
