package harness

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ServeTCP starts a server on a free loopback port until the test ends. It returns its URL and the
// operator's token, which every request needs.
func ServeTCP(tb testing.TB, o Options) (at *url.URL, token string) {
	tb.Helper()
	s := New(tb, o)
	token = strings.ToLower(rand.Text() + rand.Text())
	file := filepath.Join(TempDir(tb), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(s.bin, "serve", "--config", s.config, "--listen", "127.0.0.1:0", "--token-file", file)
	cmd.Env = s.environment()
	log, err := cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	address := make(chan string, 1)
	read := make(chan struct{})
	go func() { // ends with the process
		defer close(read)
		for in := bufio.NewReader(log); ; {
			line, err := in.ReadString('\n')
			_, _ = io.WriteString(s.log, line)
			if rest, ok := strings.CutPrefix(line, "listening on "); ok {
				host, _, _ := strings.Cut(rest, ",")
				address <- host
			}
			if err != nil {
				return
			}
		}
	}()
	tb.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			tb.Error(err)
		}
		<-read
		if err := cmd.Wait(); err != nil {
			tb.Errorf("the server ended with %v, want success", err)
		}
	})
	select {
	case host := <-address:
		if at, err = url.Parse(fmt.Sprintf("http://%s", host)); err != nil {
			tb.Fatal(err)
		}
	case <-time.After(Long):
		tb.Fatalf("the server printed no address within %s, want one", Long)
	}
	return at, token
}
