package cgroup

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// mount is a mounted cgroup hierarchy.
type mount struct {
	root  string   // cgroup at the mount point; "/" for the whole hierarchy
	point string   // mount point
	v2    bool     // cgroup2
	opts  []string // options of the superblock, which include the controllers on v1
}

func (m mount) has(opt string) bool { return slices.Contains(m.opts, opt) }

// parseMounts returns the cgroup mounts in a mountinfo file (proc(5)), in order. It skips lines
// that it does not understand.
func parseMounts(text string) []mount {
	var found []mount
	for line := range strings.SplitSeq(text, "\n") {
		left, right, ok := strings.Cut(line, " - ")
		if !ok {
			continue
		}
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 6 || len(r) < 3 || (r[0] != "cgroup" && r[0] != "cgroup2") {
			continue
		}
		root, point := unescape(l[3]), unescape(l[4])
		if !path.IsAbs(root) || !path.IsAbs(point) {
			continue
		}
		found = append(found, mount{root: root, point: point, v2: r[0] == "cgroup2", opts: strings.Split(r[2], ",")})
	}
	return found
}

// unescape decodes the octal escapes of mountinfo, such as \040 for a space.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseProc parses /proc/<pid>/cgroup into a map from hierarchy to cgroup. It omits named v1
// hierarchies without a controller.
func parseProc(text string) map[string]string {
	found := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		id, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		controllers, where, ok := strings.Cut(rest, ":")
		if !ok || !path.IsAbs(where) {
			continue
		}
		if id == "0" && controllers == "" {
			found[Unified] = where
			continue
		}
		for c := range strings.SplitSeq(controllers, ",") {
			if slices.Contains(v1Names(), c) {
				found[c] = where
			}
		}
	}
	return found
}

// cgroupDir returns the directory of a cgroup below the mount. It returns false if the mount does
// not show it: the cgroup is outside the root of this cgroup namespace, which the kernel shows as a
// path with the prefix "/..", or outside the mounted part.
func (m mount) cgroupDir(cgroup string) (string, bool) {
	cgroup = strings.TrimSuffix(cgroup, " (deleted)")
	if cgroup == "/.." || strings.HasPrefix(cgroup, "/../") {
		return "", false
	}
	cgroup = path.Clean(cgroup)
	if m.root == "/" {
		return path.Join(m.point, cgroup), true
	}
	if cgroup == m.root {
		return m.point, true
	}
	rest, ok := strings.CutPrefix(cgroup, m.root+"/")
	if !ok {
		return "", false
	}
	return path.Join(m.point, rest), true
}

// stat holds fields of /proc/<pid>/stat.
type stat struct {
	state  byte   // 'Z' for a zombie
	parent int    // pid of the parent
	start  uint64 // clock ticks since boot; with the pid it identifies a process
}

// parseStat parses /proc/<pid>/stat. The second field is a name chosen by the process and may
// contain parentheses and spaces, so fields are counted from the last parenthesis.
func parseStat(text string) (stat, error) {
	i := strings.LastIndexByte(text, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("stat line without a name: %.60q", text)
	}
	f := strings.Fields(text[i+1:])
	const state, parent, start = 0, 1, 19 // fields 3, 4 and 22 of proc(5)
	if len(f) <= start || len(f[state]) != 1 {
		return stat{}, fmt.Errorf("stat line of %d fields", len(f))
	}
	ppid, err := strconv.Atoi(f[parent])
	if err != nil {
		return stat{}, fmt.Errorf("parent in stat line: %w", err)
	}
	since, err := strconv.ParseUint(f[start], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("start time in stat line: %w", err)
	}
	return stat{state: f[state][0], parent: ppid, start: since}, nil
}

// parseKeyed parses a flat keyed file ("key value" per line) of numbers. It skips other lines.
func parseKeyed(text string) map[string]int64 {
	found := map[string]int64{}
	for line := range strings.SplitSeq(text, "\n") {
		key, value, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil {
			found[key] = n
		}
	}
	return found
}

// parsePids parses a cgroup.procs file. The kernel writes 0 for a process outside the reader's pid
// namespace. kill(2) treats 0, 1 and negative numbers specially, so they are counted as hidden and
// never returned.
func parsePids(text string) (pids []int, hidden int) {
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" {
			continue
		}
		pid, err := strconv.ParseInt(line, 10, 32)
		if err != nil || pid <= 1 {
			hidden++
			continue
		}
		pids = append(pids, int(pid))
	}
	return pids, hidden
}
