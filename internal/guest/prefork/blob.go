package prefork

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"
)

// regionBytes is the room for a blob, of which a child touches only what it
// receives. It has to hold argv, environment and paths with their pointers.
const regionBytes = 2 << 20

// Program is what a parked child becomes.
type Program struct {
	Argv []string // not empty
	Env  []string // "NAME=value"
	// Paths are tried one after the other as execvp does; relative ones are
	// taken from Dir.
	Paths []string
	// File, if set, is what is executed, whatever its name, and Paths are not
	// looked at. It need not be in reach of the user.
	File *os.File
	Dir  string
	UID  uint32
	GID  uint32
	// Groups become the only supplementary groups.
	Groups []uint32
	// Terminal makes descriptor 0 the controlling terminal of its session.
	Terminal bool
}

// A blob is built for an address at which it will stand in the child.
type blob struct {
	base uintptr
	buf  []byte
}

const word = unsafe.Sizeof(uintptr(0))

// build lays the program out as the child will use it: the header, the pointer
// arrays, then the strings. No string may hold a NUL byte.
func (b *blob) build(p *Program) error {
	size := int(unsafe.Sizeof(header{})) + int(word)*(len(p.Argv)+1+len(p.Env)+1+len(p.Paths)) + 4*len(p.Groups) + int(word)
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
		argv: b.room(len(p.Argv) + 1), envp: b.room(len(p.Env) + 1), paths: b.room(len(p.Paths)),
		npaths: uintptr(len(p.Paths)), ngroups: uintptr(len(p.Groups)), uid: uintptr(p.UID), gid: uintptr(p.GID),
	}
	if p.Terminal {
		h.tty = 1
	}
	if p.File != nil {
		h.file = fileFD
	}
	h.groups = b.here()
	for _, g := range p.Groups {
		b.buf = binary.NativeEndian.AppendUint32(b.buf, g)
	}
	b.strings(h.argv, p.Argv)
	b.strings(h.envp, p.Env)
	b.strings(h.paths, p.Paths)
	h.dir = b.here()
	b.buf = append(append(b.buf, p.Dir...), 0)
	h.total = uintptr(len(b.buf))
	copy(b.buf, (*[unsafe.Sizeof(header{})]byte)(unsafe.Pointer(&h))[:])
	return nil
}

func (b *blob) here() uintptr { return b.base + uintptr(len(b.buf)) }

// room leaves room for n pointers, all NULL.
func (b *blob) room(n int) uintptr {
	at := b.here()
	b.buf = append(b.buf, make([]byte, n*int(word))...)
	return at
}

// strings appends the strings and fills in the pointers to them at at.
func (b *blob) strings(at uintptr, list []string) {
	for i, s := range list {
		slot := b.buf[at-b.base+uintptr(i)*word:]
		binary.NativeEndian.PutUint64(slot, uint64(b.here()))
		b.buf = append(append(b.buf, s...), 0)
	}
}
