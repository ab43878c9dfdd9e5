package oci

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// words is the standard error of the runtime and then of the first process: memory of a fixed size.
// Writing to it never waits for a reader and never fails with a broken pipe, even if this process
// is gone; it ends when the memory is full. It implements the IO of a runc command.
type words struct{ file *os.File }

const wordsBytes = 16 << 10

func newWords() (*words, error) {
	fd, err := unix.MemfdCreate("stderr", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("stderr", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memory for messages: %w", err)
	}
	w := &words{file: os.NewFile(uintptr(fd), "stderr")}
	err = w.file.Truncate(wordsBytes)
	if err == nil {
		_, err = unix.FcntlInt(w.file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK)
	}
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("memory for messages: %w", err)
	}
	return w, nil
}

// String returns what was written so far, fit for an error message: one line, bounded, without
// control characters. The bytes are untrusted.
func (w *words) String() string {
	const keep = 1000
	if w == nil {
		return ""
	}
	text := make([]byte, wordsBytes)
	n, _ := w.file.ReadAt(text, 0)
	line := strings.ToValidUTF8(string(bytes.Trim(text[:n], "\x00")), "?")
	line = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, line)
	line = strings.Join(strings.Fields(line), " ")
	if len(line) > keep {
		line = strings.ToValidUTF8(line[:keep], "") + " ..."
	}
	return line
}

// Annotate appends the output to a message.
func (w *words) Annotate(message string) string {
	if said := w.String(); said != "" {
		return message + ": " + said
	}
	return message
}

// Close releases the memory in this process.
func (w *words) Close() error {
	if w == nil {
		return nil
	}
	return w.file.Close()
}

// Set makes it the standard error of cmd; input and output stay /dev/null.
func (w *words) Set(cmd *exec.Cmd) { cmd.Stderr = w.file }

// Stdin returns nil: nothing is piped.
func (w *words) Stdin() io.WriteCloser { return nil }

// Stdout returns nil.
func (w *words) Stdout() io.ReadCloser { return nil }

// Stderr returns nil.
func (w *words) Stderr() io.ReadCloser { return nil }
