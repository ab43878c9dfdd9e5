package kubernetes

import (
	"os"
	"testing"
)

// TestMain replaces the library's log before any test reads it.
func TestMain(m *testing.M) {
	quietLibrary()
	os.Exit(m.Run())
}
