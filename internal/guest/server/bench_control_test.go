package server

import (
	"os"
	"syscall"
	"testing"
)

// BenchmarkBareTrue is the baseline of the other benchmarks: fork, exec and wait by the standard
// library.
func BenchmarkBareTrue(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("not root")
	}
	s := testServer(b, false)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	fd := null.Fd()
	for b.Loop() {
		_, done, err := s.reaper.Start(func() (int, error) {
			return syscall.ForkExec("/bin/true", []string{"true"},
				&syscall.ProcAttr{Dir: "/", Files: []uintptr{fd, fd, fd},
					Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}})
		})
		if err != nil {
			b.Fatal(err)
		}
		<-done
	}
}
