// Package debian builds root filesystems from a list of Debian packages, for hosts without an
// engine that can build.
//
// It runs debootstrap on this host as root, in separate mount, process, IPC and UTS namespaces, so
// that no mount and no process remains, and without copies of other mounts of the host. Maintainer
// scripts run there as root in a chroot. As with debootstrap itself, the signed archive of the
// distribution is trusted. Error classes are InvalidArgument (the list), FailedPrecondition (this
// host) and Unavailable (the archive).
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

// Default values of a List.
const (
	DefaultSuite = "bookworm"
	keyring      = "/usr/share/keyrings/debian-archive-keyring.gpg"
	makeTime     = 30 * time.Minute
)

// List defines the content of a root filesystem.
type List struct {
	// Suite is the release; default DefaultSuite. Mirror is the URL of the archive; default is the
	// archive of the distribution.
	Suite    string   `json:"suite"`
	Mirror   string   `json:"mirror"`
	Packages []string `json:"packages"`
	// Files maps absolute paths in the root to files in the directory of the list.
	Files map[string]string `json:"files"`
}

var (
	packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	suiteName   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
)

// Validate returns an error that names the first invalid field.
func (l List) Validate() error {
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	for _, name := range l.Packages {
		if !packageName.MatchString(name) {
			return bad("packages", "invalid package name %q", name)
		}
	}
	if l.Suite != "" && !suiteName.MatchString(l.Suite) {
		return bad("suite", "invalid release name %q", l.Suite)
	}
	if u, err := url.Parse(l.Mirror); l.Mirror != "" &&
		(err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return bad("mirror", "invalid http or https URL %q", l.Mirror)
	}
	for to, from := range l.Files {
		if !path.IsAbs(to) || path.Clean(to) != to || to == "/" || from == "" {
			return bad("files", "%q must be a clean absolute path with a file name", to)
		}
	}
	return nil
}

// Build creates the root filesystem in dir, an empty directory owned by root, and passes it as a
// tar to use. base is the directory of the files in the list; log receives the output of
// debootstrap.
func Build(ctx context.Context, l List, base, dir string, log io.Writer, use func(io.Reader) error) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if err := checkHost(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, makeTime,
		fmt.Errorf("debootstrap took longer than %s: %w", makeTime, errdefs.ErrUnavailable))
	defer cancel()
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil { // dir is private
		return fmt.Errorf("create root: %w", err)
	}
	if err := l.bootstrap(ctx, root, log); err != nil {
		return err
	}
	if err := l.finish(root, base); err != nil {
		return fmt.Errorf("finish root: %w", err)
	}
	return pack(ctx, root, use)
}

// checkHost returns what is missing on this host.
func checkHost() error {
	switch _, err := exec.LookPath("debootstrap"); {
	case os.Geteuid() != 0:
		return fmt.Errorf("building from packages requires root: %w",
			errdefs.ErrFailedPrecondition)
	case err != nil:
		return fmt.Errorf("debootstrap not found: run apt-get install debootstrap, "+
			"or build a Dockerfile with an engine: %w",
			errdefs.ErrFailedPrecondition)
	}
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("archive keyring %s not found: run apt-get install debian-archive-keyring: %w",
			keyring, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// isolate is a shell script that runs the command in its arguments without the host's other mounts.
// A new mount namespace has a copy of every mount of the host. Until the namespace ends, which can
// take minutes, such a copy keeps the disk of a workspace attached that the service has unmounted.
// The script keeps the mounts of the system and those that contain its first argument, and unmounts
// all others in its own namespace only.
const isolate = `
root=$1
shift
points=$(cut -d ' ' -f 5 /proc/self/mountinfo)
IFS='
'
set -f
for point in $points; do
	point=$(printf %b "$point")
	case $point in
	/ | /tmp | /run | /var | /var/lib | /var/cache | /var/tmp) continue ;;
	/proc | /proc/* | /sys | /sys/* | /dev | /dev/* | /usr | /usr/* | /etc | /etc/*) continue ;;
	esac
	case $root/ in
	"$point"/*) continue ;;
	esac
	umount -l "$point" 2>/dev/null # fails if it was below another mount
done
exec "$@"
`

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
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", isolate, "isolate", root, "debootstrap"},
		args...)...) // arguments are validated
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	// As process 1 of its namespace, its end kills all processes it started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("debootstrap: %w (see its output; a package may not exist in %s): %w",
			err, suite, errdefs.ErrUnavailable)
	}
	return nil
}

// finish makes the root independent of this host and adds the files of the list. It follows no link
// out of the root.
func (l List) finish(at, base string) error {
	root, err := os.OpenRoot(at)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{"var/cache/apt", "var/lib/apt/lists", "etc/machine-id", "var/lib/dbus/machine-id",
		"var/log/bootstrap.log", "debootstrap", "etc/resolv.conf", "etc/hostname", "etc/hosts"} {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{"etc/resolv.conf": "", "etc/hostname": "sandbox\n",
		"etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n"} {
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
		if err := copyFile(root, to[1:], files, from); err != nil {
			return err
		}
	}
	return nil
}

// addUser adds a name for the user that runs the commands of sandboxes.
func addUser(root *os.Root) error {
	const id = "1000"
	for name, line := range map[string]string{"etc/passwd": "user:x:1000:1000::/home/user:/bin/bash\n",
		"etc/group": "user:x:1000:\n"} {
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

// copyFile copies a file from the directory of the list. The list is untrusted, so paths must not
// leave that directory.
func copyFile(root *os.Root, to string, files *os.Root, from string) error {
	in, err := files.OpenFile(from, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return fmt.Errorf("files: %s must be in the directory of the list: %w: %w", from,
			err, errdefs.ErrInvalidArgument)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("files: %s is not a regular file: %w", from, errdefs.ErrInvalidArgument)
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

// pack passes the root as a tar to take.
func pack(ctx context.Context, root string, take func(io.Reader) error) error {
	cmd := exec.CommandContext(ctx, "tar", "--numeric-owner", "--sort=name", "--format=pax",
		"--pax-option=delete=atime,delete=ctime", "-C", root, "-c", ".")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("pack root: %w", err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("pack root: %w", err)
	}
	taken := take(out)
	if taken != nil {
		_ = cmd.Process.Kill() // its output is not read any more
	}
	if err := cmd.Wait(); err != nil && taken == nil {
		return fmt.Errorf("pack root: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return taken
}
