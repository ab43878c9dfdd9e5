package prefork

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"
)

// regionBytes is the size of the buffer for one blob: argv, environment and paths with their
// pointers. A child only touches the pages that it receives.
const regionBytes = 2 << 20

// Program describes what a parked child executes.
type Program struct {
	Argv []string // must not be empty
	Env  []string // "NAME=value"
	// Paths are tried in order, as execvp does. Relative paths are resolved against Dir.
	Paths []string
	// File, if set, is executed instead of Paths. The command's user need not be able to reach it
	// by name.
	File *os.File
	Dir  string
	UID  uint32
	GID  uint32
	// Groups are the only supplementary groups of the command.
	Groups []uint32
	// Terminal makes descriptor 0 the controlling terminal of the command's session.
	Terminal bool
}

// blob is a serialized Program. Its pointers are valid at address base of the child.
type blob struct {
	base uintptr
	buf  []byte
}

const word = unsafe.Sizeof(uintptr(0))

// build serializes p: the header, the pointer arrays, then the strings. No string may contain a NUL
// byte. It fails if the result exceeds regionBytes.
func (b *blob) build(p *Program) error {
	size := int(unsafe.Sizeof(header{})) + int(word)*(len(p.Argv)+1+len(p.Env)+1+len(p.Paths)) + 4*len(p.Groups) +
		int(word)
	for _, list := range [][]string{p.Argv, p.Env, p.Paths, {p.Dir}} {
		for _, s := range list {
			size += len(s) + 1
		}
	}
	if size > regionBytes {
		return fmt.Errorf("argv, environment and search path need %d bytes, %d are there", size, regionBytes)
	}
	if cap(b.buf) < size {
		b.buf = make([]byte, 0, size)
	}
	b.buf = b.buf[:unsafe.Sizeof(header{})]
	h := header{
		argv: b.reserve(len(p.Argv) + 1), envp: b.reserve(len(p.Env) + 1), paths: b.reserve(len(p.Paths)),
		npaths: uintptr(len(p.Paths)), ngroups: uintptr(len(p.Groups)), uid: uintptr(p.UID), gid: uintptr(p.GID),
	}
	if p.Terminal {
		h.tty = 1
	}
	if p.File != nil {
		h.file = fileFD
	}
	h.groups = b.addr()
	for _, g := range p.Groups {
		b.buf = binary.NativeEndian.AppendUint32(b.buf, g)
	}
	b.strings(h.argv, p.Argv)
	b.strings(h.envp, p.Env)
	b.strings(h.paths, p.Paths)
	h.dir = b.addr()
	b.buf = append(append(b.buf, p.Dir...), 0)
	h.total = uintptr(len(b.buf))
	copy(b.buf, (*[unsafe.Sizeof(header{})]byte)(unsafe.Pointer(&h))[:])
	return nil
}

func (b *blob) addr() uintptr { return b.base + uintptr(len(b.buf)) }

// reserve appends n NULL pointers and returns their address.
func (b *blob) reserve(n int) uintptr {
	at := b.addr()
	b.buf = append(b.buf, make([]byte, n*int(word))...)
	return at
}

// strings appends the strings and stores their addresses in the pointer array at address at.
func (b *blob) strings(at uintptr, list []string) {
	for i, s := range list {
		slot := b.buf[at-b.base+uintptr(i)*word:]
		binary.NativeEndian.PutUint64(slot, uint64(b.addr()))
		b.buf = append(append(b.buf, s...), 0)
	}
}
