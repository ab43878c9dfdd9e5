package core

import (
	"time"
	"unicode/utf8"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Limits of a command's variables: their number, and the bytes of names and values.
const (
	MaxEnv      = 1024
	MaxEnvBytes = 256 << 10
)

// Milliseconds returns d in milliseconds, with a fraction down to microseconds.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// MaxListed bounds lists.
const MaxListed = 1000

// maxSession bounds the name of a session, in bytes.
const maxSession = 128

// ValidateSession returns an *InvalidError of the field "session" if name cannot name a session.
func ValidateSession(name string) error {
	if name == "" || len(name) > maxSession || !utf8.ValidString(name) {
		return usererror.Invalid("session", "is not a name of 1 to %d bytes", maxSession)
	}
	for _, c := range name {
		if c < ' ' || c == 0x7f {
			return usererror.Invalid("session", "has a control character")
		}
	}
	return nil
}
