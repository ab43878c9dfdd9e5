package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
)

// minToken is the minimum length of a token: 32 random hex digits are 128 bits.
const minToken = 32

// maxToken bounds the size of a token file, in bytes.
const maxToken = 4096

// ReadToken reads a token from a file that only its owner can read. On Linux, a file of root may
// also be readable for a group of this process. On Windows, it does not check who can read the
// file.
func ReadToken(path string) (string, error) {
	bad := func(why string) error {
		return Refuse(errdefs.ErrInvalidArgument, "token file %s %s", path, why)
	}
	// Opening a FIFO must not wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", bad("does not exist")
	}
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("token file: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxToken:
		return "", bad("is not a regular file of at most 4096 bytes")
	case readableByOthers(info):
		return "", bad(fmt.Sprintf("has mode %04o: others can read it; chmod 600 it", info.Mode().Perm()))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < minToken {
		return "", bad(
			fmt.Sprintf("has %d characters: at least %d, such as `openssl rand -hex 32` makes", len(token), minToken),
		)
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return "", bad("holds more than one word of printable ASCII")
		}
	}
	return token, nil
}
