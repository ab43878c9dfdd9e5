// Command bench prints the table of figures: each figure next to what it is compared with, from one
// run, and how noisy the machine was.
//
//	go run ./integration/bench [--quick] [--only WORD] [--write FILE]
//
// It measures the real program through the Go client, on the embedded runtime, a Docker Engine,
// containerd and, if integration/scripts/kubernetes.sh has started a node, Kubernetes. It needs
// root and the environment set by integration/scripts/test.sh. It removes whatever it makes, also
// after a signal. The exit code is 1 if something could not be measured,
// which the table says; a missed target does not change it.
//
// One goroutine waits for each started process. Goroutines that make load are waited for where they
// are started.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// image is the name of the sandbox image in the test engine.
const image = "orchestrator/sandbox:latest"

// crowd is the number of sandboxes in figures about many sandboxes.
const crowd = 50

// bench is one run.
type bench struct {
	report
	bin, archive string
	root         string // directory of everything it makes
	inside       string // the static helper
	engine       *engine
	srv          *server
	short        bool
	only         string // run only phases whose name contains it
	began        time.Time
	oneShotOCI   time.Duration // p50
}

func main() {
	quick := flag.Bool("quick", false, "fewer samples: only to see that everything works")
	write := flag.String("write", "", "write the table to `FILE` too")
	only := flag.String("only", "", "only the phases with `WORD` in their name")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, *quick, *only, *write)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures everything, prints the table and writes it to file.
func run(ctx context.Context, quick bool, only, file string) (err error) {
	b := &bench{short: quick, only: only, began: time.Now()}
	if err := b.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close(context.WithoutCancel(ctx))) }()
	if err := b.measure(ctx); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := b.write(io.MultiWriter(os.Stdout, &text)); err != nil {
		return err
	}
	if file != "" {
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if len(b.failed) > 0 {
		return fmt.Errorf("%d figures could not be measured: %s", len(b.failed), b.failed[0])
	}
	return nil
}

// open reads the environment and builds the helper.
func (b *bench) open(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("must be root: it makes containers, mounts and cgroups")
	}
	host, socket := "", ""
	for name, v := range map[string]*string{
		"BIN":           &b.bin,
		"IMAGE_ARCHIVE": &b.archive,
		"DOCKER":        &host,
		"CONTAINERD":    &socket,
	} {
		if *v = os.Getenv("ORCHESTRATOR_TEST_" + name); *v == "" {
			return fmt.Errorf("ORCHESTRATOR_TEST_%s is not set: use `make bench`, "+
				"or the environment that integration/scripts/test.sh env prints", name)
		}
	}
	if b.engine, err = newEngine(host); err != nil {
		return err
	}
	if b.root, err = os.MkdirTemp("", "b"); err != nil {
		return err
	}
	b.inside = filepath.Join(b.root, "inside")
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", b.inside,
		"github.com/sandbox-orchestrator/orchestrator/integration/bench/inside")
	c.Env = append(os.Environ(), "CGO_ENABLED=0") // it runs in images with another C library or none
	if out, err := c.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("build the helper: %w\n%s", err, out), os.RemoveAll(b.root))
	}
	b.srv, err = newServer(b.bin, b.root, socket)
	return err
}

// close removes everything.
func (b *bench) close(ctx context.Context) error {
	errs := []error{b.engine.clear(ctx), b.srv.down(ctx), b.srv.log.Close()}
	if mountsUnder(b.root) {
		return errors.Join(append(errs, fmt.Errorf("not removed, since mounts are left below it: %s", b.root))...)
	}
	return errors.Join(append(errs, os.RemoveAll(b.root))...)
}

// measure runs the phases.
func (b *bench) measure(ctx context.Context) error {
	b.report.host = b.host(ctx)
	ticks, stolen := cpuTicks()
	var err error
	if b.noise, err = noise(ctx, "before"); err != nil {
		return err
	}
	if err := b.importImage(ctx); err != nil {
		return err
	}
	for _, phase := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"many sandboxes on oci", b.manyOCI},
		{"single calls on oci", b.callsOCI},
		{"calls after a pause on oci", b.pauses},
		{"jobs on oci", b.jobs},
		{"governed calls on oci", b.governed},
		{"egress on oci", b.egress},
		{"browser on oci", b.browser},
		{"docker", b.docker},
		{"containerd", b.containerd},
		{"kubernetes", b.kubernetes},
	} {
		if !strings.Contains(phase.name, b.only) {
			continue
		}
		b.say(phase.name)
		err := phase.do(ctx)
		err = errors.Join(err, b.srv.down(ctx))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			b.fail(phase.name, err)
		}
	}
	after, err := noise(ctx, "after")
	if err != nil {
		return err
	}
	b.noise = append(b.noise, after...)
	ticks2, stolen2 := cpuTicks()
	b.report.host = append(b.report.host,
		[2]string{
			"processor time taken by other machines meanwhile",
			fmt.Sprintf("%.1f %%", 100*float64(stolen2-stolen)/float64(max(1, ticks2-ticks))),
		},
		[2]string{"the whole run took", time.Since(b.began).Round(time.Second).String()},
		[2]string{"on", b.began.UTC().Format("2006-01-02")})
	return nil
}

// importImage imports the image into the state directory before a server starts.
func (b *bench) importImage(ctx context.Context) error {
	b.say("image")
	if err := b.srv.configure("oci", b.engine.host, 0, 1); err != nil {
		return err
	}
	if err := b.srv.command(ctx, "image", "import", b.archive).Run(); err != nil {
		return fmt.Errorf("import %s: %w\n%s", b.archive, err, b.srv.tail())
	}
	return nil
}

// say reports progress.
func (b *bench) say(what string) {
	fmt.Fprintf(os.Stderr, "%4.0f s  %s\n", time.Since(b.began).Seconds(), what)
}

// n returns the number of samples to take.
func (b *bench) n(many int) int {
	if b.short {
		return max(3, many/10)
	}
	return many
}

// d returns how long to make load.
func (b *bench) d(long time.Duration) time.Duration {
	if b.short {
		return long / 10
	}
	return long
}
