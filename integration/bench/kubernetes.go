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
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Targets on Kubernetes.
const (
	throughTarget = time.Millisecond // over the same guest without an API server
	newExec       = 25.0             // times faster than a new exec for each call
	claimP50      = 30 * time.Millisecond
	claimP99      = 100 * time.Millisecond
	onePodTarget  = 150 * time.Millisecond
	podOutput     = 60.0 // MB/s
	coldPod       = 1.2  // times a bare pod
)

// nodeNamespace is the namespace of the service's pods.
const nodeNamespace = "orchestrator-bench"

// kubernetes measures on the node of integration/scripts/kubernetes.sh. Without one it does
// nothing, unless it was asked for by --only.
func (b *bench) kubernetes(ctx context.Context) error {
	if os.Getenv("ORCHESTRATOR_TEST_KUBECONFIG") == "" {
		if b.only == "" {
			b.say("  left out: no node is up")
			return nil
		}
		return errors.New("no node is up: run integration/scripts/kubernetes.sh up")
	}
	for _, m := range []struct {
		what string
		do   func(context.Context) error
	}{{"the stream", b.stream}, {"cold pods", b.coldPods}, {"the service on a cluster", b.onCluster}} {
		b.say("  " + m.what)
		if err := m.do(ctx); err != nil {
			b.fail(m.what+", kubernetes", err)
		}
	}
	return nil
}

// stream measures calls in the process of the driver, without the service.
func (b *bench) stream(ctx context.Context) error {
	f, err := b.driverFigures(ctx, "BenchmarkCalls")
	if err != nil {
		return err
	}
	p50, direct, fresh := f.at("websocket-p50-ns"), f.at("direct-p50-ns"), f.at("exec-p50-ns")
	target := direct + throughTarget
	b.figure("exec of `/bin/true` in a pod through the open stream, kubernetes, one caller, p50",
		"the same guest without an API server + 1.0 ms: "+ms(target), ms(p50),
		fmt.Sprintf("without %s, so + %s (p99: without %s, through %s)", ms(direct), ms(p50-direct),
			ms(f.at("direct-p99-ns")), ms(f.at("websocket-p99-ns"))), p50 <= target)
	times25 := factor(fresh, p50)
	b.figure("the same, beside a new `pods/exec` for each call", "25× faster", ms(p50),
		fmt.Sprintf("new exec %s: %s", ms(fresh), times(times25)), times25 >= newExec)
	b.figure("requests to the API server for a call", "0", strconv.FormatFloat(f["requests"], 'f', -1, 64),
		"the server's own count of requests for pods, 200 calls", f["requests"] == 0)
	b.tell("exec through the open stream over SPDY, p50", ms(f.at("spdy-p50-ns")), "p99 "+ms(f.at("spdy-p99-ns")))
	return nil
}

// coldPods measures new pods in the process of the driver.
func (b *bench) coldPods(ctx context.Context) error {
	f, err := b.driverFigures(ctx, "BenchmarkCold")
	if err != nil {
		return err
	}
	ours, bare := f.at("cold-p50-ns"), f.at("bare-p50-ns")
	by := factor(ours, bare)
	b.figure("cold start, kubernetes, to the end of the first exec, p50", "1.2× a bare pod until it is ready", ms(ours),
		fmt.Sprintf("bare pod %s: %.2f×", ms(bare), by), by <= coldPod)
	return nil
}

// metrics are what a benchmark of the driver reported, by unit.
type metrics map[string]float64

func (m metrics) at(name string) time.Duration { return time.Duration(m[name]) }

// driverFigures runs a benchmark of runtime/kubernetes. It is not here, because only that package
// may use the library of Kubernetes.
func (b *bench) driverFigures(ctx context.Context, name string) (metrics, error) {
	c := exec.CommandContext(ctx, "go", "test", "-tags", "kubernetes", "-vet=off", "-count=1", "-run", "^$",
		"-bench", "^"+name+"$", "-benchtime", "1x", "-timeout", "5m",
		"github.com/sandbox-orchestrator/orchestrator/runtime/kubernetes")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := c.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return parseMetrics(out, name)
}

// parseMetrics reads the line of a benchmark: its name, the number of runs, and values with units.
func parseMetrics(out []byte, name string) (metrics, error) {
	for line := range bytes.Lines(out) {
		words := strings.Fields(string(line))
		if len(words) < 2 || !strings.HasPrefix(words[0], name) {
			continue
		}
		m := metrics{}
		for i := 2; i+1 < len(words); i += 2 {
			value, err := strconv.ParseFloat(words[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			m[words[i+1]] = value
		}
		return m, nil
	}
	return nil, fmt.Errorf("%s reported nothing:\n%s", name, out)
}

// onCluster measures the service with sandboxes in pods.
func (b *bench) onCluster(ctx context.Context) (err error) {
	const warm = 20
	kubectl := func(ctx context.Context, args ...string) error {
		out, err := exec.CommandContext(ctx, os.Getenv("ORCHESTRATOR_TEST_KUBECTL"),
			append([]string{"--kubeconfig", os.Getenv("ORCHESTRATOR_TEST_KUBECONFIG")}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("kubectl %q: %w\n%s", args, err, out)
		}
		return nil
	}
	if err := kubectl(ctx, "create", "namespace", nodeNamespace); err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, b.srv.down(ctx), kubectl(ctx, "delete", "namespace", nodeNamespace))
	}()
	if err := b.srv.configureCluster(warm); err != nil {
		return err
	}
	if _, err := b.srv.start(ctx); err != nil {
		return err
	}
	id, err := b.claims(ctx, warm)
	if err != nil {
		return err
	}
	return errors.Join(b.throughService(ctx, id), b.podOutput(ctx, id))
}

// configureCluster writes the configuration for a cluster. Its one template keeps warm sandboxes
// and has no others, so that no creation affects a measurement.
func (s *server) configureCluster(warm int) error {
	text := fmt.Sprintf(`listen: 'unix:%s'
state_dir: '%s'
runtime: kubernetes
log: {level: warn}
admission: {max_sandboxes: 120, max_memory: 64GiB}
kubernetes:
  kubeconfig: '%s'
  namespace: %s
  guest_image: '%s'
  network: none
  pull_policy: Never
  cpu_request: 0.01
templates:
  default:
    image: %s
    limits: {memory: 192MiB, pids: 160, cpus: 1}
    pool: {min: %d, max: %d, rate: 1000, parallel: 4}
    entrypoint: [/usr/local/lib/orchestrator/entrypoint.sh]
`, s.socket, filepath.Join(s.root, "k"), os.Getenv("ORCHESTRATOR_TEST_KUBECONFIG"), nodeNamespace,
		os.Getenv("ORCHESTRATOR_TEST_KUBERNETES_IMAGE"), image, warm, warm)
	return os.WriteFile(s.config, []byte(text), 0o600)
}

// claims leases all warm pods, twice, and returns one of the second leases. The pods stay leased,
// so that the pool is not filled again.
func (b *bench) claims(ctx context.Context, warm int) (string, error) {
	var all samples
	var ids []string
	for range 2 {
		_, err := together(4, len(ids), func(i int) error { return b.srv.client.RemoveSandbox(ctx, ids[i]) })
		if err := errors.Join(err, b.srv.quiet(ctx, warm)); err != nil {
			return "", err
		}
		ids = nil
		took, err := timed(warm, func(int) error {
			s, err := b.srv.client.CreateSandbox(ctx, v1.SandboxRequest{WhenEmpty: "refuse"})
			ids = append(ids, s.ID)
			return err
		})
		if err != nil {
			return "", err
		}
		all = append(all, took...)
	}
	b.figure("lease of a warm pod, kubernetes, p50", "30 ms", ms(all.p50()), "", all.p50() <= claimP50)
	b.figure("the same, p99", "100 ms", ms(all.p99()), "longest "+ms(all.max()), all.p99() <= claimP99)
	return ids[0], nil
}

// throughService measures calls of one pod through HTTP, one after the other and many at once.
func (b *bench) throughService(ctx context.Context, id string) error {
	one, err := timed(b.n(300), func(int) error { return b.callTrue(ctx, id) })
	if err != nil {
		return err
	}
	b.tell("exec of `/bin/true` through HTTP, kubernetes, one caller, p50", ms(one.p50()), "p99 "+ms(one.p99()))
	rounds, err := timed(6, func(int) error {
		_, err := together(crowd, crowd, func(int) error { return b.callTrue(ctx, id) })
		return err
	})
	if err != nil {
		return err
	}
	b.figure("exec of `/bin/true` through HTTP, kubernetes, 50 at once in one pod, all ended, slowest of 6 rounds",
		"150 ms", ms(rounds.max()), "p50 of the rounds "+ms(rounds.p50()), rounds.max() <= onePodTarget)
	return nil
}

// podOutput sends a stream out of a pod.
func (b *bench) podOutput(ctx context.Context, id string) error {
	n, took, err := b.raw(ctx, id, 256<<20)
	if err != nil {
		return err
	}
	speed := float64(n) / 1e6 / took.Seconds()
	b.figure("raw output, one stream, kubernetes", "60 MB/s", fmt.Sprintf("%.0f MB/s", speed), "256 MiB",
		speed >= podOutput)
	return nil
}
