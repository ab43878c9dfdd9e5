package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// lockedBuffer is a writer that can be read at the same time.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestProgressReportsUntilStop(t *testing.T) {
	for draw, want := range map[bool]string{true: "\r\x1b[K3 bytes", false: "3 bytes\n"} {
		out, p := &lockedBuffer{}, &Progress{}
		p.reportEvery(out, func() string { return fmt.Sprint(p.bytes.Load(), " bytes") }, time.Millisecond, draw)
		if _, err := io.Copy(io.Discard, p.Count(strings.NewReader("abc"))); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), want); {
			if time.Now().After(deadline) {
				t.Fatalf("progress, drawn %t = %q, want %q", draw, out.String(), want)
			}
			time.Sleep(time.Millisecond)
		}
		p.Stop()
		p.Stop()
		end := out.String()
		if draw && !strings.HasSuffix(end, "\r\x1b[K") {
			t.Errorf("progress after Stop = %q, want the line cleared", end)
		}
		time.Sleep(5 * time.Millisecond)
		if got := out.String(); got != end {
			t.Errorf("progress wrote %q after Stop", strings.TrimPrefix(got, end))
		}
	}
}

func TestShortWorkReportsNothing(t *testing.T) {
	out := &lockedBuffer{}
	(&App{Stderr: out}).StartProgress("x", 0).Stop()
	if out.String() != "" {
		t.Errorf("progress of short work = %q, want none", out.String())
	}
}
