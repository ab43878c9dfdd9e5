package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// noiseRow is the timing of work unrelated to this project.
type noiseRow struct {
	what string
	s    samples
}

// noise measures how steady the machine is, with a fixed piece of arithmetic and with fork and exec
// with pipes.
func noise(ctx context.Context, when string) ([]noiseRow, error) {
	block := make([]byte, 1<<20)
	loop, err := timed(100, func(int) error {
		for range 4 {
			sum := sha256.Sum256(block)
			block[0] = sum[0] // keeps the compiler from removing the loop
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	fork, err := timed(200, func(int) error { return forkTrue(ctx) })
	return []noiseRow{
		{"SHA-256 of 4 MiB, " + when, loop},
		{"fork and exec of `/bin/true` on the host, " + when, fork},
	}, err
}

// forkTrue forks and executes true with two pipes and waits for its end.
func forkTrue(ctx context.Context) error {
	var out, errOut bytes.Buffer
	c := exec.CommandContext(ctx, "/bin/true")
	c.Stdout, c.Stderr = &out, &errOut
	return c.Run()
}

// cpuTicks returns the used and stolen time of all processors since boot, in ticks. Stolen time
// went to other guests of the same physical machine.
func cpuTicks() (all, stolen int64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || i > 8 { // guest time is included in user time
			continue
		}
		all += n
		if i == 8 {
			stolen = n
		}
	}
	return all, stolen
}

// host describes the machine.
func (b *bench) host(ctx context.Context) [][2]string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	facts := [][2]string{
		{"kernel", strings.TrimSpace(string(kernel))},
		{"processors", fmt.Sprintf("%d × %s", runtime.NumCPU(), lineOf("/proc/cpuinfo", "model name"))},
		{"memory", lineOf("/proc/meminfo", "MemTotal")},
		{"load before", strings.TrimSpace(string(load))},
		{"runc", firstOf(ctx, "runc", "--version")},
		{"go", runtime.Version()},
	}
	if v, err := b.engine.version(ctx); err == nil {
		facts = append(facts, [2]string{"engine", v})
	}
	return facts
}

// lineOf returns the value of a "name: value" line of a kernel file.
func lineOf(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

// firstOf returns the first line that a command prints.
func firstOf(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}
