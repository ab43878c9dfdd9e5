// Package testtime scales the timeouts of tests for slow machines, such as emulated ones.
package testtime

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// EnvFactor names the environment variable with the factor, an integer from 1 to 255. Without it,
// the factor is 1.
const EnvFactor = "ORCHESTRATOR_TEST_TIME_FACTOR"

// Scale returns d times the factor. It panics if the factor is invalid.
func Scale(d time.Duration) time.Duration { return time.Duration(int64(d) * factor()) }

var factor = sync.OnceValue(func() int64 {
	n, err := parse(os.Getenv(EnvFactor))
	if err != nil {
		panic(err)
	}
	return n
})

func parse(text string) (int64, error) {
	if text == "" {
		return 1, nil
	}
	n, err := strconv.ParseInt(text, 10, 9) // at most 255
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("invalid %s %q: use an integer from 1 to 255", EnvFactor, text)
	}
	return n, nil
}
