package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// isolate deletes every network interface but the loopback one. It needs NET_ADMIN.
func isolate() error {
	list, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list network interfaces: %w", err)
	}
	for _, i := range list {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		// Deleting one end of a pair of interfaces also deletes another that may be listed.
		if err := deleteInterface(i.Index); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete network interface %s: %w", i.Name, err)
		}
	}
	return checkIsolated()
}

// deleteInterface asks the kernel over netlink to delete an interface.
func deleteInterface(index int) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const size = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	msg := make([]byte, size)
	binary.NativeEndian.PutUint32(msg[0:], size)
	binary.NativeEndian.PutUint16(msg[4:], unix.RTM_DELLINK)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	binary.NativeEndian.PutUint32(msg[unix.SizeofNlMsghdr+4:], uint32(index))
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel's answer is not an acknowledgement")
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return syscall.Errno(-code)
	}
	return nil
}

// outside are addresses that a command must not reach: a public one, the metadata service of cloud
// providers, the usual address of a cluster's API server, its usual DNS server, and a public one of
// IPv6.
func outside() []string {
	return []string{"1.1.1.1:53", "169.254.169.254:80", "10.96.0.1:443", "10.96.0.10:53", "[2606:4700:4700::1111]:53"}
}

// checkIsolated returns an error if it finds a network interface other than the loopback one, or a
// route to anything outside. It sends nothing.
func checkIsolated() error {
	list, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list network interfaces: %w", err)
	}
	for _, i := range list {
		if i.Flags&net.FlagLoopback == 0 {
			return fmt.Errorf("the sandbox is not isolated: it has the network interface %s", i.Name)
		}
	}
	for _, address := range outside() {
		conn, err := net.Dial("udp", address) // looks up a route and sends nothing
		if err == nil {
			conn.Close()
			return fmt.Errorf("the sandbox is not isolated: it has a route to %s", address)
		}
		if !noRoute(err) {
			return fmt.Errorf("isolation of the sandbox cannot be checked: route to %s: %w", address, err)
		}
	}
	return nil
}

// noRoute reports whether an address cannot be reached. gVisor reports EHOSTUNREACH.
func noRoute(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EAFNOSUPPORT) ||
		errors.Is(err, unix.EADDRNOTAVAIL)
}
