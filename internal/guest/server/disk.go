package server

import (
	"bufio"
	"bytes"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// fullMargin, or fullShare of the file system if that is less, is what a full
	// one may still have: kernels refuse a write of a MiB as a whole.
	fullMargin = 2 << 20
	fullShare  = 32
	// maxPlaces bounds what is looked at for one command: a look takes a
	// microsecond or two.
	maxPlaces = 16
	// lastKept is how much of the end of an output is looked at for an error.
	lastKept = 1 << 10
)

// findPlaces lists where commands can write: the workspace, whatever is mounted
// there when they run, and every file system that somebody other than root may
// write to. They are as the sandbox was made with; nothing but the workspace is
// mounted later.
func (s *Server) findPlaces() []string {
	places := []string{s.Workspace}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		s.Log.Warn("mounts could not be listed", "error", err)
		return append(places, "/tmp", defaultHome, "/dev/shm")
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan() && len(places) < maxPlaces; {
		at, ok := writableMount(lines.Text())
		if ok && !slices.Contains(places, at) {
			places = append(places, at)
		}
	}
	return places
}

// writableMount reads a line of mountinfo: the place, and whether a command may
// make files there that take room.
func writableMount(line string) (string, bool) {
	head, tail, ok := strings.Cut(line, " - ")
	fields, kind := strings.Fields(head), strings.Fields(tail)
	if !ok || len(fields) < 6 || len(kind) < 3 || strings.Contains(fields[4], `\`) {
		return "", false
	}
	rw := func(options string) bool { return slices.Contains(strings.Split(options, ","), "rw") }
	switch kind[0] {
	case "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2":
		return "", false
	}
	var st unix.Stat_t
	if !rw(fields[5]) || unix.Lstat(fields[4], &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", false
	}
	return fields[4], st.Mode&0o002 != 0 || st.Uid != 0
}

// diskFull lists the places where there is no room for data or for files now.
func (s *Server) diskFull() []string {
	var full []string
	for _, place := range s.places() {
		if what := lacks(place); what != "" {
			full = append(full, place+" ("+what+")")
		}
	}
	return full
}

// lacks names what a file system that can be written has no more of.
func lacks(place string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(place, &st); err != nil || st.Blocks == 0 || st.Flags&unix.ST_RDONLY != 0 {
		return ""
	}
	size, free := int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	switch {
	case free == 0:
		return "no space"
	case free < min(fullMargin, size/fullShare):
		return "hardly any space"
	case st.Files > 0 && st.Ffree == 0:
		return "no more files"
	}
	return ""
}

// told says whether the end of an output has the kernel's words for a disk
// without room, as C libraries and languages print them.
func told(output []byte) bool {
	for _, words := range []string{"No space left on device", "ENOSPC", "Disk quota exceeded", "EDQUOT", "StorageFull"} {
		if bytes.Contains(output, []byte(words)) {
			return true
		}
	}
	return false
}
