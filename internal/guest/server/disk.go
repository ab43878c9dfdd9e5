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
	// A file system counts as full if less than fullMargin is free, or less than 1/fullShare of its
	// size if that is smaller. Kernels refuse a write of a MiB as a whole.
	fullMargin = 2 << 20
	fullShare  = 32
	// maxPlaces bounds the directories checked per command. Each check takes one or two
	// microseconds.
	maxPlaces = 16
	// tailBytes is how much of the end of an output is searched for an error.
	tailBytes = 1 << 10
)

// findWritablePlaces lists where commands can write: the workspace, and every file system that
// users other than root may write to. The list does not change during the sandbox's life; only the
// workspace is mounted later.
func (s *Server) findWritablePlaces() []string {
	places := []string{s.Workspace}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		s.Log.Warn("failed to list mounts", "error", err)
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

// writableMount parses a line of mountinfo. It returns the mount point and whether a command can
// create files there that use space.
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

// fullPlaces lists the places that have no room for data or files now.
func (s *Server) fullPlaces() []string {
	var full []string
	for _, place := range s.places() {
		if what := shortage(place); what != "" {
			full = append(full, place+" ("+what+")")
		}
	}
	return full
}

// shortage describes what a writable file system has run out of, or returns "".
func shortage(place string) string {
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

// saysDiskFull reports whether an output ends with a message for a full disk, as C libraries and
// language runtimes print it.
func saysDiskFull(output []byte) bool {
	for _, words := range []string{"No space left on device", "ENOSPC", "Disk quota exceeded", "EDQUOT", "StorageFull"} {
		if bytes.Contains(output, []byte(words)) {
			return true
		}
	}
	return false
}
