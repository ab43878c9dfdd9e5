package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// reconnectTime is how long a daemon that returned may go unnoticed.
const reconnectTime = time.Second

// answerTime bounds the requests of New.
const answerTime = 10 * time.Second

// oldestMinor is the minor version of the first containerd 1 with everything we use.
const oldestMinor = 6

// connect returns a client. It dials at the first call, and again whenever the daemon was away.
func connect(o Options) (*client.Client, error) {
	api, err := client.New(o.Address, client.WithDefaultNamespace(o.Namespace), client.WithTimeout(reconnectTime))
	if err != nil {
		return nil, fmt.Errorf("containerd on %s: %w", o.Address, err)
	}
	return api, nil
}

// peerOf returns the pid of the daemon that listens at the address.
func peerOf(ctx context.Context, address string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", address)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, fmt.Errorf("containerd not found at %s: install and start it (apt-get install containerd), or set "+
			"containerd.address: %w", address, errdefs.ErrUnavailable)
	case err != nil:
		return 0, fmt.Errorf("containerd on %s does not answer: start it, or set containerd.address: %w: %w", address, err,
			errdefs.ErrUnavailable)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("containerd on %s: %w", address, err)
	}
	var peer *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(cerr, err); err != nil {
		return 0, fmt.Errorf("containerd on %s: %w", address, err)
	}
	return int(peer.Pid), nil
}

// checkPeer requires that the daemon shares our mount and pid namespaces: its containers must see
// our mounts.
func checkPeer(ctx context.Context, address string) error {
	daemon, err := peerOf(ctx, address)
	if err != nil {
		return err
	}
	for name, what := range map[string]string{"mnt": "mounts", "pid": "processes"} {
		own, err := os.Readlink("/proc/self/ns/" + name)
		if err != nil {
			return fmt.Errorf("namespace of %s: %w", what, err)
		}
		other, err := os.Readlink("/proc/" + strconv.Itoa(daemon) + "/ns/" + name)
		if err != nil || own != other {
			return host.Unfit("the daemon on "+address+" sees other "+what+" than this process",
				"run both on the host and not in a container")
		}
	}
	return nil
}

// checkVersion returns the daemon's version, or an error if it is too old.
func checkVersion(ctx context.Context, api *client.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	v, err := api.Version(ctx)
	if err != nil {
		return "", fmt.Errorf("version of containerd: %w", err)
	}
	if !newEnough(v.Version) {
		return "", host.Unfit("containerd is "+strconv.Quote(v.Version),
			fmt.Sprintf("install containerd 1.%d or later", oldestMinor))
	}
	return v.Version, nil
}

// newEnough parses a version such as "1.6.20~ds1" or "v2.0.1".
func newEnough(version string) bool {
	x, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	major, err1 := strconv.Atoi(x)
	minor, err2 := strconv.Atoi(rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))])
	return err1 == nil && err2 == nil && (major > 1 || major == 1 && minor >= oldestMinor)
}

// findSnapshotter returns the requested snapshotter or the daemon's default, if the daemon reports
// it as working.
func findSnapshotter(ctx context.Context, api *client.Client, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if name == "" {
		var err error
		if name, err = api.GetLabel(ctx, defaults.DefaultSnapshotterNSLabel); err != nil && !errdefs.IsNotFound(err) {
			return "", fmt.Errorf("default snapshotter: %w", err)
		}
	}
	if name == "" {
		name = defaults.DefaultSnapshotter
	}
	got, err := api.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
	if err != nil {
		return "", fmt.Errorf("snapshotters of containerd: %w", err)
	}
	var fit []string
	lack := "it has no snapshotter " + name
	for _, p := range got.Plugins {
		switch {
		case p.InitErr == nil && p.ID == name:
			return name, nil
		case p.InitErr == nil:
			fit = append(fit, p.ID)
		case p.ID == name:
			lack = "its snapshotter " + name + " does not work: " + p.InitErr.Message
		}
	}
	return "", host.Unfit(lack, "set containerd.snapshotter to one of "+strings.Join(fit, ", "))
}
