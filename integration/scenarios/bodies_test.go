//go:build integration

package scenarios

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestSlowBodiesAreBounded holds request bodies back by their last byte. They must neither fill the
// service's memory nor keep other callers from it.
func TestSlowBodiesAreBounded(t *testing.T) { //nolint:tparallel // it measures memory, so it runs alone
	const (
		connections = 60
		size        = 32 << 20
		maxMemory   = 300_000_000
	)
	on(t, []string{"oci"}, func(t *testing.T, runtime string) {
		s := harness.Run(t, harness.Options{Runtime: runtime, Config: onDemand, Seed: &seed})
		ann, ben := newCaller(t, s, `{"caller":"ann","trust":3}`), newCaller(t, s, `{"caller":"ben","trust":3}`)
		call := func(p caller, word string) int {
			got := p.request(t, "POST", "/v1/tools/system.bash/call", `{"input":{"command":"echo `+word+`"}}`)
			if got.Status == http.StatusOK && !strings.Contains(string(got.Body), word) {
				t.Errorf("call %s: answer %s, want the word in it", word, got.Body)
			}
			return got.Status
		}
		t.Logf("peak memory before: %d MB", harness.PeakMemory(t, s.Pid())/1e6)
		conns := make([]net.Conn, connections)
		statuses := make([]int, connections)
		var sending, answers sync.WaitGroup
		for i := range conns {
			conns[i] = holdBody(t, s, ann, size, &sending)
			answers.Go(func() {
				if res, err := http.ReadResponse(bufio.NewReader(conns[i]), nil); err == nil {
					res.Body.Close()
					statuses[i] = res.StatusCode
				}
			})
		}
		for i := range 5 {
			if got := call(ben, fmt.Sprint("during-", i)); got != http.StatusOK {
				t.Errorf("system.bash of another caller during the attack: status %d, want 200", got)
			}
			if r, err := s.Client.Run(within(t), v1.Run{Exec: v1.Exec{Command: "cat", Stdin: "kept"}}); err != nil ||
				r.Stdout != "kept" {
				t.Errorf("Run of the operator during the attack = %+v, %v; want output kept", r, err)
			}
		}
		sending.Wait()
		if got := call(ben, "after"); got != http.StatusOK {
			t.Errorf("system.bash of another caller after the attack: status %d, want 200", got)
		}
		answers.Wait()
		assertBodiesRefused(t, statuses)
		if got := call(ann, "again"); got != http.StatusOK {
			t.Errorf("system.bash after the attack: status %d, want 200: the budget is not released", got)
		}
		got := harness.PeakMemory(t, s.Pid())
		t.Logf("peak memory %d MB", got/1e6)
		if got > maxMemory {
			t.Errorf("peak memory %d MB, want at most %d MB", got/1e6, maxMemory/1_000_000)
		}
	})
}

// assertBodiesRefused checks that most requests got status 429, and the others 408.
func assertBodiesRefused(t *testing.T, statuses []int) {
	t.Helper()
	counts := map[int]int{}
	for _, status := range statuses {
		counts[status]++
	}
	t.Logf("answers by status: %v", counts)
	most := counts[http.StatusTooManyRequests]
	if most+counts[http.StatusRequestTimeout] != len(statuses) || most < len(statuses)/2 {
		t.Errorf("answers by status: %v, want 429 for most and 408 for the rest", counts)
	}
}

// holdBody begins a request in the group sending, and sends all of its body except the last byte.
func holdBody(t *testing.T, s *harness.Server, p caller, size int, sending *sync.WaitGroup) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", s.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	head := fmt.Sprintf("POST /v1/run HTTP/1.1\r\nHost: localhost\r\n%s: %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", p.header[0], p.header[1], size)
	sending.Go(func() {
		if _, err := io.WriteString(conn, head); err != nil {
			return // the request was refused
		}
		piece := bytes.Repeat([]byte(" "), 64<<10)
		for left := size - 1; left > 0; {
			n, err := conn.Write(piece[:min(left, len(piece))])
			if err != nil {
				return
			}
			left -= n
		}
	})
	return conn
}
