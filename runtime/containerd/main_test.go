package containerd

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// atEnd removes what all tests share.
var atEnd = func() error { return nil }

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := atEnd(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}
