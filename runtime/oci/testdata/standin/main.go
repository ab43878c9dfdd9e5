// Command standin is the first process of the driver's tests: it parks streams as the guest does, and does on each what one line of
// JSON asks for.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

type request struct {
	Argv []string   `json:"argv"` // run it as uid, and tell its output
	UID  uint32     `json:"uid"`
	Call [7]uintptr `json:"call"` // or make this system call
	End  bool       `json:"end"`  // or end
}

type reply struct {
	Output string `json:"output"`
	Error  string `json:"error"`
	Errno  int    `json:"errno"`
}

func main() {
	if len(os.Args) < 2 || os.Args[1] != "init" {
		fmt.Println("hello from", os.Args[0])
		return
	}
	if err := guestconn.Park(context.Background(), wire.HostSocket, 4, func(c net.Conn) bool { serve(c); return false },
		func() {}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(conn net.Conn) {
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return
	}
	var req request
	if err := json.Unmarshal(line, &req); err != nil {
		return
	}
	_ = json.NewEncoder(conn).Encode(do(req))
}

func do(req request) (r reply) {
	switch {
	case req.End:
		os.Exit(0)
	case len(req.Argv) > 0:
		var out bytes.Buffer
		cmd := exec.Command(req.Argv[0], req.Argv[1:]...)
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: req.UID, Gid: req.UID}}
		if err := cmd.Run(); err != nil {
			r.Error = err.Error()
		}
		r.Output = out.String()
	default:
		c := req.Call
		fd, _, errno := unix.Syscall6(c[0], c[1], c[2], c[3], c[4], c[5], c[6])
		if errno == 0 && c[0] == unix.SYS_SOCKET {
			_ = unix.Close(int(fd))
		}
		if errors.Is(errno, syscall.Errno(0)) {
			return r
		}
		r.Errno = int(errno)
	}
	return r
}
