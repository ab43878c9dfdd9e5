package server

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Limits for an image's /etc/passwd. Anything beyond them is ignored.
const (
	maxPasswd = 1 << 20
	maxUsers  = 10_000
	maxField  = 256
)

// maxUserID is the greatest valid id: the next one means "none".
const maxUserID = 1<<32 - 2

type user struct {
	name     string
	uid, gid uint32
	home     string
}

// readUsers reads the image's users. It returns none if the file is missing or invalid.
func readUsers(root string) []user {
	fd, err := unix.Open(filepath.Join(root, "etc", "passwd"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY,
		0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "passwd")
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxPasswd))
	if err != nil {
		return nil
	}
	return parseUsers(text)
}

// parseUsers parses passwd(5) and skips invalid lines.
func parseUsers(text []byte) []user {
	var users []user
	for line := range bytes.Lines(text) {
		if len(users) == maxUsers {
			break
		}
		fields := strings.Split(string(bytes.TrimRight(line, "\r\n")), ":")
		if len(fields) != 7 || fields[0] == "" || len(fields[0]) > maxField || strings.ContainsRune(fields[0], 0) {
			continue
		}
		uid, ok := parseID(fields[2])
		gid, ok2 := parseID(fields[3])
		if !ok || !ok2 {
			continue
		}
		u := user{name: fields[0], uid: uid, gid: gid}
		if home := fields[5]; filepath.IsAbs(home) && len(home) <= maxField && !strings.ContainsRune(home, 0) {
			u.home = home
		}
		users = append(users, u)
	}
	return users
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n <= maxUserID
}

// lookUpUser resolves a user name as described at wire.Command.User.
func (s *Server) lookUpUser(name string) (user, *wire.Failure) {
	bad := func(format string, args ...any) (user, *wire.Failure) {
		return user{}, wire.Failf(wire.InvalidArgument, "user", format, args...)
	}
	if len(name) > maxField || strings.ContainsRune(name, 0) {
		return bad("is not a valid user name")
	}
	u := user{uid: s.UID, gid: s.GID}
	if name != "" {
		uidPart, gidPart, both := strings.Cut(name, ":")
		uid, numeric := parseID(uidPart)
		switch {
		case numeric:
			u.uid, u.gid = uid, uid
			if known := s.byID(uid); known != nil && !both {
				u.gid = known.gid
			}
			if both {
				if u.gid, numeric = parseID(gidPart); !numeric {
					return bad("%q has no numeric group", name)
				}
			}
		case both:
			return bad(`%q is not "", a name, "uid" or "uid:gid"`, name)
		default:
			known := s.byName(name)
			if known == nil {
				return bad("the image's /etc/passwd has no user %q", name)
			}
			u = *known
		}
	}
	if u.uid == 0 {
		return bad("uid 0 is not allowed, because it owns the sandbox's guest: use another uid (default: %d)", s.UID)
	}
	s.completeUser(&u)
	return u, nil
}

// completeUser fills in a missing name and home directory.
func (s *Server) completeUser(u *user) {
	if known := s.byID(u.uid); known != nil && u.name == "" {
		u.name, u.home = known.name, known.home
	}
	if u.uid == s.UID {
		u.home = defaultHome
	}
	if u.home == "" {
		u.home = "/"
	}
	if u.name == "" {
		u.name = "user"
	}
}

func (s *Server) byID(uid uint32) *user {
	for _, u := range s.users() {
		if u.uid == uid {
			return &u
		}
	}
	return nil
}

func (s *Server) byName(name string) *user {
	for _, u := range s.users() {
		if u.name == name {
			return &u
		}
	}
	return nil
}
