package guestconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// After the host's end, the guest still answers, whatever it said and how late.
func TestMuxedStreamEndsOneDirection(t *testing.T) {
	t.Parallel()
	said := strings.Repeat("said ", 100_000)
	release := make(chan struct{})
	got := make(chan string, 1)
	b := bridge(t, func(c net.Conn) {
		all, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		got <- string(all)
		<-release
		_, _ = io.WriteString(c, said)
	})
	c, err := b.mux.Open(soon(t))
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	asked := strings.Repeat("asked ", 100_000)
	for _, piece := range []string{"", asked[:1], asked[1:5000], asked[5000:]} {
		_, err := io.WriteString(c, piece)
		must(t, err)
	}
	half := c.(interface{ CloseWrite() error })
	must(t, half.CloseWrite())
	must(t, half.CloseWrite())
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after CloseWrite: %v, want %v", err, net.ErrClosed)
	}
	if text := <-got; text != asked {
		t.Errorf("the guest read %d bytes, want %d", len(text), len(asked))
	}
	close(release)
	if all, err := io.ReadAll(c); err != nil || string(all) != said {
		t.Errorf("the host read %d bytes, %v; want the %d bytes that were sent", len(all), err, len(said))
	}
}

// Close still ends both directions: the guest's writes fail.
func TestMuxedCloseEndsBothDirections(t *testing.T) {
	t.Parallel()
	for name, half := range map[string]bool{"open": false, "half-closed": true} {
		failed := make(chan error, 1)
		b := bridge(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1))
			_, _ = io.Copy(io.Discard, c)
			for {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					failed <- err
					return
				}
			}
		})
		c, err := b.mux.Open(soon(t))
		must(t, err)
		_, err = c.Write([]byte("x"))
		must(t, err)
		if half {
			must(t, c.(interface{ CloseWrite() error }).CloseWrite())
		}
		must(t, c.Close())
		select {
		case <-failed:
		case <-time.After(patience):
			t.Errorf("%s: the guest still writes after %s, want its write to fail", name, patience)
		}
	}
}

// limited accepts a number of bytes in all, then times out.
type limited struct {
	bytes.Buffer
	room int
}

var errTimeout = errors.New("timeout")

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.room)
	l.room -= n
	l.Buffer.Write(b[:n])
	if n < len(b) {
		return n, errTimeout
	}
	return n, nil
}

// A write that stopped at any byte continues where it stopped.
func TestFramerContinuesAfterTimeout(t *testing.T) {
	t.Parallel()
	const text = "a first piece, and a second one"
	for stop := range len(text) + 4*pieceHeader {
		w := &limited{room: stop}
		f := &framer{w: w}
		rest := []byte(text)
		for attempts := 0; len(rest) > 0; attempts++ {
			n, err := f.Write(rest[:min(17, len(rest))])
			rest = rest[n:]
			if err != nil && (!errors.Is(err, errTimeout) || attempts > len(text)) {
				t.Fatalf("write stopped at byte %d: %v, want it continued after %v", stop, err, errTimeout)
			}
			if err != nil {
				if err := f.CloseWrite(); !errors.Is(err, errHalfSent) {
					t.Fatalf("CloseWrite within a frame: %v, want %v", err, errHalfSent)
				}
				w.room = 1 << 20
			}
		}
		w.room = 1 << 20
		must(t, f.CloseWrite())
		for name, r := range map[string]io.Reader{
			"whole": bytes.NewReader(w.Bytes()), "single bytes": iotest.OneByteReader(bytes.NewReader(w.Bytes())),
		} {
			if got, err := io.ReadAll(&deframer{r: r}); err != nil || string(got) != text {
				t.Errorf("stopped at %d, read in %s: %q, %v; want %q", stop, name, got, err, text)
			}
		}
	}
}

// The end of a stream anywhere but after its end frame is the host's Close.
func TestDeframerTellsEndFromClose(t *testing.T) {
	t.Parallel()
	var w bytes.Buffer
	f := &framer{w: &w}
	_, err := f.Write([]byte("text"))
	must(t, err)
	must(t, f.CloseWrite())
	for cut := range w.Len() {
		if _, err := io.ReadAll(&deframer{r: bytes.NewReader(w.Bytes()[:cut])}); !errors.Is(err, errHostEnded) {
			t.Errorf("cut after %d bytes: %v, want %v", cut, err, errHostEnded)
		}
	}
	if _, err := io.ReadAll(&deframer{r: strings.NewReader("\xff\xff\xff\xffx")}); err == nil ||
		!strings.Contains(err.Error(), "at most") {
		t.Errorf(`frame over the limit: %v, want an error with "at most"`, err)
	}
}
