package config

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"path"
	"strconv"
	"strings"
	"time"

	units "github.com/docker/go-units"
)

// Duration is a time.Duration written as "90s", "2m" or "1h30m".
type Duration time.Duration

// String returns the written form.
func (d Duration) String() string { return time.Duration(d).String() }

// Std returns d as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// UnmarshalJSON reads the written form. A number without a unit is an error.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is not a duration such as 90s or 2m", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 90s or 2m", s)
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON writes the written form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// Size is a number of bytes, written as "512MiB", "1g" or a number. Units are powers of 1024.
type Size int64

// String returns the written form.
func (s Size) String() string { return units.BytesSize(float64(s)) }

// UnmarshalJSON reads both forms.
func (s *Size) UnmarshalJSON(b []byte) error {
	var n int64
	if json.Unmarshal(b, &n) == nil {
		*s = Size(n)
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("%s is not a size such as 512MiB", b)
	}
	n, err := units.RAMInBytes(text)
	if err != nil || n < 0 || n == math.MaxInt64 { // not a number of bytes
		return fmt.Errorf("%q is not a size such as 512MiB", text)
	}
	*s = Size(n)
	return nil
}

// MarshalJSON writes the written form.
func (s Size) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// isAbsolute reports whether a path of the server's host is absolute. That host runs Linux; a
// client that reads the configuration may not.
func isAbsolute(name string) bool { return path.IsAbs(name) }

// isClean reports whether path.Clean leaves a path of the server's host unchanged.
func isClean(name string) bool { return path.Clean(name) == name }

// SplitListen splits a listen address ("unix:/path" or "host:port") into a network and an address
// for net.Listen.
func SplitListen(listen string) (network, address string) {
	if path, ok := strings.CutPrefix(listen, "unix:"); ok {
		return "unix", path
	}
	return "tcp", listen
}

func validateListen(listen string) error {
	network, address := SplitListen(listen)
	if network == "unix" {
		if !strings.HasPrefix(address, "/") {
			return bad("listen", listen, "needs an absolute path after unix:")
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return bad("listen", listen, "must be unix:PATH or HOST:PORT")
	}
	return validateAddress("listen", address)
}

// validateAddress checks the HOST:PORT of a key.
func validateAddress(key, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return bad(key, address, "must be HOST:PORT")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return bad(key, address, "has a port that is not from 0 to 65535")
	}
	return nil
}
