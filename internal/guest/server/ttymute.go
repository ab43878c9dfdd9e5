package server

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// gVisor's terminals send no signals for keys or a new size, and do not report their foreground
// process group. The guest then sends these signals to every process of the command, including
// background ones. A terminal that cannot be interrupted is hardly usable.
//
// detectMute detects whether the kernel sends these signals.

// detectMute finds out what the kernel leaves to us.
func (t *terminal) detectMute() {
	err := t.control(func(fd int) error {
		_, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	t.mute = err != nil
}

// signalResize signals a new size if the kernel does not.
func (t *terminal) signalResize(r *commandRun) {
	if t.mute {
		_ = r.signal(int(unix.SIGWINCH), true) // it may just have ended
	}
}

// signalKeys sends the signals for special keys if the kernel does not, and returns the other keys.
func (t *terminal) signalKeys(r *commandRun, keys []byte) []byte {
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
		if key == 0 || bytes.IndexByte(keys, key) < 0 { // 0: disabled
			continue
		}
		_ = r.signal(int(s.signal), true) // it may just have ended
		keys = bytes.ReplaceAll(keys, []byte{key}, nil)
	}
	return keys
}
