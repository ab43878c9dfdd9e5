package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// containerd measures on containerd.
func (b *bench) containerd(ctx context.Context) error {
	const warm = 4
	if err := b.srv.configure("containerd", b.engine.host, warm, 20); err != nil {
		return err
	}
	// The first start unpacks the image into the daemon, which must not be measured.
	if _, err := b.srv.start(ctx); err != nil {
		return err
	}
	if err := b.srv.full(ctx, warm); err != nil {
		return err
	}
	if err := b.idle("containerd", shimOf); err != nil {
		b.fail("idle cost, containerd", err)
	}
	s, err := b.oneShot(ctx, warm, 30)
	if err != nil {
		return err
	}
	b.figure("one-shot call on a warm pool, containerd, p50", "10 ms", ms(s.p50()), "p99 "+ms(s.p99()),
		s.p50() <= oneShotTarget)
	if s, err = b.cold(ctx, 15, nil); err != nil {
		return err
	}
	b.tell("cold start, containerd, p50", ms(s.p50()), "p99 "+ms(s.p99()))
	return nil
}

// shimOf is a word in the command line of the shim of each containerd sandbox.
const shimOf = "containerd-shim-"

// idle measures the memory of a warm sandbox: its own processes, and the engine's process with word
// in its command line that is the sandbox's parent.
func (b *bench) idle(runtime, word string) error {
	found, err := guests(b.root)
	if err != nil || len(found) == 0 {
		return errors.Join(err, fmt.Errorf("found %d guests, want some", len(found)))
	}
	var inside, beside int64
	for _, g := range found {
		for _, pid := range g.all {
			if m, err := memoryOf(pid); err == nil { // it may have exited
				inside += m.pss
			}
		}
		parent, err := parentOf(g.pid)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", parent))
		if err != nil {
			return err
		}
		if word == "" || !strings.Contains(string(text), word) {
			continue
		}
		m, err := memoryOf(parent)
		if err != nil {
			return err
		}
		beside += m.pss
	}
	n := int64(len(found))
	b.tell("idle, memory of a warm sandbox, "+runtime, mb((inside+beside)/n),
		fmt.Sprintf("PSS of its processes %s, of its shim %s", mb(inside/n), mb(beside/n)))
	return nil
}
