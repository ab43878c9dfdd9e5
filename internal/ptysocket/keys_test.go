package ptysocket

import (
	"bytes"
	"io"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestKeysAreOrderedAndBounded(t *testing.T) {
	k := newKeys()
	if !k.add([]byte("abc")) || !k.add(nil) || !k.add([]byte("de")) {
		t.Fatal("not taken")
	}
	buf := make([]byte, 4)
	if n, err := k.Read(buf); string(buf[:n]) != "abcd" || err != nil {
		t.Errorf("Read = %q, %v; want abcd", buf[:n], err)
	}
	// Read bytes are not accepted yet: the window counts the bytes that the terminal accepted.
	if k.add(make([]byte, v1.TerminalWindow-4)) {
		t.Error("more than the window was taken")
	}
	k.accepted(4)
	if !k.add(make([]byte, v1.TerminalWindow-1)) || k.add([]byte("x")) {
		t.Error("the window is not what it says")
	}
	k.end()
	rest, err := io.ReadAll(k)
	if err != nil || len(rest) != v1.TerminalWindow || rest[0] != 'e' {
		t.Errorf("%d bytes, %v", len(rest), err)
	}
}

func TestKeysReadWaits(t *testing.T) {
	k := newKeys()
	got := make(chan []byte)
	go func() { b, _ := io.ReadAll(k); got <- b }()
	for _, s := range []string{"one ", "two ", "three"} {
		k.add([]byte(s))
	}
	k.end()
	if b := <-got; !bytes.Equal(b, []byte("one two three")) {
		t.Errorf("typed = %q, want one two three", b)
	}
}
