// Package debian makes root filesystems from a list of Debian packages, for
// hosts without an engine that could build.
//
// It runs debootstrap on this host, as root, in mount, process and other
// namespaces of its own: whatever becomes of it, no mount and no process of it
// stays. The packages' maintainer scripts run there as root in a chroot: as with
// debootstrap itself, the distribution's archive, whose signature is checked,
// is trusted. Errors are of class InvalidArgument (the list), FailedPrecondition
// (this host) or Unavailable (the archive).
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Defaults of a List.
const (
	DefaultSuite = "bookworm"
	keyring      = "/usr/share/keyrings/debian-archive-keyring.gpg"
	makeTime     = 30 * time.Minute
)

// List says what is in a root.
type List struct {
	// Suite is the release, Mirror where it is fetched from: empty are
	// DefaultSuite and the distribution's own archive.
	Suite    string   `json:"suite"`
	Mirror   string   `json:"mirror"`
	Packages []string `json:"packages"`
	// Files are put into the root, by their absolute path there: the path of a
	// file in the folder that the list lies in.
	Files map[string]string `json:"files"`
}

var (
	packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	suiteName   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
)

// Validate names the first field that cannot be used.
func (l List) Validate() error {
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	for _, name := range l.Packages {
		if !packageName.MatchString(name) {
			return bad("packages", "%q is no name of a package", name)
		}
	}
	if l.Suite != "" && !suiteName.MatchString(l.Suite) {
		return bad("suite", "%q is no name of a release", l.Suite)
	}
	if u, err := url.Parse(l.Mirror); l.Mirror != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return bad("mirror", "%q is no http or https address", l.Mirror)
	}
	for to, from := range l.Files {
		if !path.IsAbs(to) || path.Clean(to) != to || to == "/" || from == "" {
			return bad("files", "%q: has to be a clean absolute path, and name a file", to)
		}
	}
	return nil
}

// Make makes the root in dir, an empty folder of root's, and gives it to take
// as a tar. base is where the files of the list are; log gets what debootstrap
// writes.
func Make(ctx context.Context, l List, base, dir string, log io.Writer, take func(io.Reader) error) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, makeTime, fmt.Errorf("debootstrap took longer than %s: %w", makeTime, errdefs.ErrUnavailable))
	defer cancel()
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil { //nolint:gosec // a root, in a folder for root alone
		return fmt.Errorf("make a root: %w", err)
	}
	if err := l.bootstrap(ctx, root, log); err != nil {
		return err
	}
	if err := l.finish(root, base); err != nil {
		return fmt.Errorf("finish the root: %w", err)
	}
	return pack(ctx, root, take)
}

// ready says what is missing on this host.
func ready() error {
	switch _, err := exec.LookPath("debootstrap"); {
	case os.Geteuid() != 0:
		return fmt.Errorf("a list of packages is built as root: a root filesystem has files of several users: %w", errdefs.ErrFailedPrecondition)
	case err != nil:
		return fmt.Errorf("debootstrap is missing: apt-get install debootstrap, or build a Dockerfile with an engine: %w", errdefs.ErrFailedPrecondition)
	}
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("%s is missing, by which the archive's signature is checked: apt-get install debian-archive-keyring: %w", keyring, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (l List) bootstrap(ctx context.Context, root string, log io.Writer) error {
	args := []string{"--variant=minbase", "--force-check-gpg", "--keyring=" + keyring}
	if len(l.Packages) > 0 {
		args = append(args, "--include="+strings.Join(l.Packages, ","))
	}
	suite := l.Suite
	if suite == "" {
		suite = DefaultSuite
	}
	args = append(args, suite, root)
	if l.Mirror != "" {
		args = append(args, l.Mirror)
	}
	cmd := exec.CommandContext(ctx, "debootstrap", args...) //nolint:gosec // every part has been checked
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	// As process 1 of its namespace it takes all that it started with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("debootstrap: %w: what it wrote says why; a package of that name may not be in %s: %w", err, suite, errdefs.ErrUnavailable)
	}
	return nil
}

// finish makes the root independent of the host it was made on, and puts the
// list's files in. Nothing of it follows a link out of the root.
func (l List) finish(at, base string) error {
	root, err := os.OpenRoot(at)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{"var/cache/apt", "var/lib/apt/lists", "etc/machine-id", "var/lib/dbus/machine-id", "var/log/bootstrap.log", "debootstrap", "etc/resolv.conf", "etc/hostname", "etc/hosts"} {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{"etc/resolv.conf": "", "etc/hostname": "sandbox\n", "etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n"} {
		if err := root.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	if err := addUser(root); err != nil {
		return err
	}
	if len(l.Files) == 0 {
		return nil
	}
	files, err := os.OpenRoot(base)
	if err != nil {
		return fmt.Errorf("files: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	defer files.Close()
	for to, from := range l.Files {
		if err := put(root, to[1:], files, from); err != nil {
			return err
		}
	}
	return nil
}

// addUser gives the user that sandboxes' commands run as a name.
func addUser(root *os.Root) error {
	const id = "1000"
	for name, line := range map[string]string{"etc/passwd": "user:x:1000:1000::/home/user:/bin/bash\n", "etc/group": "user:x:1000:\n"} {
		raw, err := root.ReadFile(name)
		if err != nil {
			return err
		}
		if bytes.Contains(raw, []byte(":x:"+id+":")) {
			continue
		}
		if err := root.WriteFile(name, append(raw, line...), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// put copies a file that lies with the list: a list is as foreign as a
// Dockerfile, and the image is not for root alone.
func put(root *os.Root, to string, files *os.Root, from string) error {
	in, err := files.OpenFile(from, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would wait
	if err != nil {
		return fmt.Errorf("files: %s: has to be in the folder of the list: %w: %w", from, err, errdefs.ErrInvalidArgument)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("files: %s is no file: %w", from, errdefs.ErrInvalidArgument)
	}
	if err := root.MkdirAll(path.Dir(to), 0o755); err != nil {
		return err
	}
	if err := root.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := root.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// pack gives the root to take as a tar.
func pack(ctx context.Context, root string, take func(io.Reader) error) error {
	cmd := exec.CommandContext(ctx, "tar", "--numeric-owner", "--sort=name", "--format=pax", "--pax-option=delete=atime,delete=ctime", "-C", root, "-c", ".")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("pack the root: %w", err)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("pack the root: %w", err)
	}
	taken := take(out)
	if taken != nil {
		_ = cmd.Process.Kill() // nobody reads what it writes
	}
	if err := cmd.Wait(); err != nil && taken == nil {
		return fmt.Errorf("pack the root: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return taken
}
