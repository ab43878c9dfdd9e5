//go:build faults

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Enabled says whether this build can be made to die.
const Enabled = true

// plan is what the environment asked for when the process started. It is the
// only state of the package, and exists in test builds alone.
var plan = sync.OnceValue(func() *countdown {
	point, n := parse(os.Getenv(Env))
	return &countdown{point: point, left: n}
})

type countdown struct {
	mu    sync.Mutex
	point string
	left  int
}

// Hit kills the process if the environment names point and this is the time to
// do so. It may be called concurrently.
func Hit(point string) {
	p := plan()
	if p.point == "" || p.point != point {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left--; p.left != 0 {
		return
	}
	// SIGKILL and not os.Exit: nothing deferred may run, as in a real crash.
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// parse splits "point:N". A point's name may hold colons itself; only a last
// part that is a positive number counts.
func parse(value string) (point string, n int) {
	if i := strings.LastIndexByte(value, ':'); i >= 0 {
		if n, err := strconv.Atoi(value[i+1:]); err == nil && n > 0 {
			return value[:i], n
		}
	}
	return value, 1
}
