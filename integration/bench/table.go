package main

import (
	"fmt"
	"io"
	"strings"
)

// row is one line of the table. An empty target makes it informative only.
type row struct {
	what, target, measured, ratio string
	reached                       bool
}

// report is everything that is printed.
type report struct {
	host   [][2]string
	rows   []row // with a target
	beside []row // without one
	noise  []noiseRow
	failed []string
}

// figure adds a line with a target.
func (r *report) figure(what, target, measured, ratio string, reached bool) {
	r.rows = append(r.rows, row{what, target, measured, ratio, reached})
}

// tell adds a line without a target.
func (r *report) tell(what, measured, ratio string) {
	r.beside = append(r.beside, row{what: what, measured: measured, ratio: ratio})
}

// fail reports that something could not be measured.
func (r *report) fail(what string, err error) {
	r.failed = append(r.failed, fmt.Sprintf("%s: %v", what, err))
}

// write writes the table with its preface and method.
func (r *report) write(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Figures\n\n" + preface)
	b.WriteString("| what | to reach | measured | beside it, in the same run | reached |\n|---|---|---|---|---|\n")
	for _, x := range r.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", x.what, x.target, x.measured, dash(x.ratio), yes(x.reached))
	}
	for _, f := range r.failed {
		fmt.Fprintf(&b, "| %s | | not measured | | **no** |\n", cell(f))
	}
	b.WriteString("\n## Without a target\n\n| what | measured | beside it |\n|---|---|---|\n")
	for _, x := range r.beside {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", x.what, x.measured, dash(x.ratio))
	}
	b.WriteString("\n## How noisy the machine was\n\nWork independent of this program, measured before and after.\n" +
		"If these values differ, or their p99 is far from their p50, the figures above are equally uncertain.\n\n")
	b.WriteString("| | p50 | p99 | longest |\n|---|---|---|---|\n")
	for _, n := range r.noise {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", n.what, ms(n.s.p50()), ms(n.s.p99()), ms(n.s.max()))
	}
	b.WriteString("\n## Where\n\n")
	for _, h := range r.host {
		fmt.Fprintf(&b, "- %s: %s\n", h[0], cell(h[1]))
	}
	b.WriteString("\n" + method)
	_, err := io.WriteString(w, b.String())
	return err
}

// yes formats whether a target was reached.
func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "**no**"
}

// dash returns a dash for an empty text.
func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// cell puts text on one line and escapes it for a table.
func cell(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return strings.ReplaceAll(s, "|", "\\|")
}

const preface = "`make bench`" + ` measures these figures in one run on one machine.
Figures are never rounded in favour of this program.
` + "`go run ./integration/bench --write docs/figures.md`" + ` writes this file, in the environment that
` + "`integration/scripts/test.sh env`" + ` prints.

`

const method = `## How

The program is ` + "`orchestrator serve`" + ` on a unix socket.
The caller is the Go client in another process **on the same cores**, so the figures include its
cost.
Sandboxes are those of the default template, except for a memory cap of 192 MiB, 160 processes, and
the pool sizes.

- *exec*: ` + "`POST /v1/sandboxes/{id}/exec`" + ` of ` + "`/bin/true`" + `, with the answer decoded.
  *Bare*: a static Go program in the same sandbox that forks and executes ` + "`/bin/true`" + ` with two
  pipes, reads them to the end, and waits.
  The two alternate.
  *Engine's exec*: create and start over the engine's socket, read to the end of the stream, on one
  of the service's sandboxes.
- *calls apart, calls after silence*: in one leased sandbox, alternating with fork and exec on the
  host after the same pauses.
- *8 callers, 50 at once*: each on its own lease.
  Of the rounds of 50, the slowest counts.
- *lease*: ` + "`POST /v1/sandboxes`" + ` with two variables and a workspace, one after the other, from a full
  pool that is not refilled during the measurement.
- *one-shot*: ` + "`POST /v1/run`" + `.
  For p50, each call waits until the pool is full.
  For the rate, four callers never wait, and counting starts when the pool has been drained.
- *cold start*: a lease from a template that keeps nothing warm, up to the answer, so it includes
  the lease.
  *Create and start*: of the same image by the engine, without network and log, over its socket.
- *verdict, audit*: in the process of the benchmark, through the service's packages.
  Records have about 600 bytes.
- *governed call*: ` + "`POST /v1/tools/system.bash/call`" + ` of ` + "`true`" + ` in a leased sandbox, alternating with
  ` + "`exec`" + ` of the same command in the same sandbox.
- *approval*: from the call of a tool that needs approval to the event at a listener of
  ` + "`/v1/approvals/events`" + `, both in the Go client.
- *raw output*: ` + "`head -c … /dev/zero`" + ` with ` + "`Accept: application/octet-stream`" + `.
  The memory is the highest resident size of the service during the transfer, as the kernel reports
  it.
- *through the gateway*: a static Go program in a sandbox with two processors, through its proxy,
  alternating with the same program on the host, without a proxy or through a relay of ` + "`io.Copy`" + ` in
  the benchmark's process.
  Requests are on one connection, one after the other.
  The servers are in the benchmark's process.
  Tunnels are open and silent.
  The command is a background one, from its start to the answer that all of its processes are dead.
- *browser*: ` + "`browser.open`" + ` of a page on loopback with a picture of 1280 × 800, with the example's
  template.
  Each call waits until a browser is warm and no other one starts.
- *jobs*: ` + "`POST /v1/jobs`" + ` of ` + "`/bin/true`" + `, up to the answer that the job has ended, alternating with
  as many ` + "`POST /v1/run`" + `.
  Both begin with a full pool.
- *kubernetes*: on the node of ` + "`integration/scripts/kubernetes.sh`" + `, which shares the cores.
  Calls through the open stream, to the guest's socket on the node and by a new exec alternate, all
  in the driver's process.
  Cold starts alternate with pods of the same image, from their creation to the report that they are
  ready.
- *resident*: from ` + "`/proc/PID/smaps_rollup`" + `.
  MB are 10^6 bytes.
- *restart*: from the start of the new process to the first 200 of ` + "`/readyz`" + `.
  The slowest round counts, and all sandboxes must be there with the same processes.
`
