package main

import (
	"os"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn/relay"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestOtherKernelClassIsRefused(t *testing.T) {
	t.Parallel()
	if relay.IsGVisor() {
		t.Skip("this host is gVisor")
	}
	if err := checkKernel(runtime.ClassContainer, false); err != nil {
		t.Errorf("checkKernel(container) = %v, want nil", err)
	}
	if err := checkKernel(runtime.ClassGVisor, false); err == nil || !strings.Contains(err.Error(), "runsc") {
		t.Errorf("checkKernel(gvisor) on Linux = %v, want an error with the way out", err)
	}
	if err := checkFresh("6.1"); err == nil || !strings.Contains(err.Error(), "virtual machine") {
		t.Errorf("checkFresh on this host = %v, want an error", err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	filtered := strings.Contains(string(status), "\nSeccomp:\t2\n")
	if err := checkKernel("", true); (err == nil) != filtered {
		t.Errorf("checkKernel with a required filter = %v, want nil only if there is one (%v)", err, filtered)
	}
}

func TestHostRootIsNoUserNamespace(t *testing.T) {
	t.Parallel()
	if err := checkUIDMap("         0          0 4294967295\n"); err == nil || !strings.Contains(err.Error(), "user_namespaces") {
		t.Errorf("checkUIDMap of the host = %v, want an error that names the setting", err)
	}
	if err := checkUIDMap("         0     524288      65536\n"); err != nil {
		t.Errorf("checkUIDMap of a user namespace = %v, want nil", err)
	}
}
