package server

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// gVisor's terminals are mute: they make no signals of keys or of a new size,
// and tell nobody who is in their foreground. Then every process of the command
// gets the signals, those in its background too: a terminal that cannot be
// interrupted is of little use.

// findMute finds out what the kernel leaves to us.
func (t *terminal) findMute() {
	err := t.control(func(fd int) error {
		_, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	t.mute = err != nil
}

// announce tells of a new size where the kernel does not.
func (t *terminal) announce(r *run) {
	if t.mute {
		_ = r.signal(int(unix.SIGWINCH), true) // it may just have ended
	}
}

// strike sends the signals that keys stand for, where the kernel does not, and
// returns the other keys.
func (t *terminal) strike(r *run, keys []byte) []byte {
	if !t.mute {
		return keys
	}
	var mode *unix.Termios
	if err := t.control(func(fd int) (err error) {
		mode, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	}); err != nil || mode.Lflag&unix.ISIG == 0 {
		return keys
	}
	for _, s := range []struct {
		key    int
		signal unix.Signal
	}{{unix.VINTR, unix.SIGINT}, {unix.VQUIT, unix.SIGQUIT}, {unix.VSUSP, unix.SIGTSTP}} {
		key := mode.Cc[s.key]
		if key == 0 || bytes.IndexByte(keys, key) < 0 { // 0: it stands for nothing
			continue
		}
		_ = r.signal(int(s.signal), true) // it may just have ended
		keys = bytes.ReplaceAll(keys, []byte{key}, nil)
	}
	return keys
}
