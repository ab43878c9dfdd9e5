// Package runtimetest is the conformance suite for runtime drivers. It checks from inside
// sandboxes, with the guest as the only way in, that every capability a driver claims holds against
// commands that try to break it, and that a capability it does not claim fails with a clear error.
// Claims are recorded in a table of drivers and capabilities, which the suite compares with the
// driver.
//
// [Run] needs root, a host that shares its processes with the sandboxes, and an image with Python
// 3, bash and coreutils. It treats the driver as a black box: on the host it reads /proc,
// /sys/fs/cgroup and the mount table, and kills processes of sandboxes it made. It removes every
// sandbox at the end of its test and checks that nothing is left.
//
// The only assertion about speed is that a guest in a full sandbox answers half of all pings within
// [AnswerTime]. Everything else may take up to [Patience]. The suite starts goroutines for commands
// that run during a test and waits for them.
package runtimetest

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// The timeouts are scaled by [testtime.Scale].
var (
	// Patience is the timeout for any single step. It is far more than a busy machine needs.
	Patience = testtime.Scale(2 * time.Minute)
	// AnswerTime is the limit for the median ping while commands use up everything else. It is
	// generous: the machine may run other tests.
	AnswerTime = testtime.Scale(5 * time.Second)
)

// Factory creates drivers of one kind. Leftovers, RemoveImage, HostPID, SkipKernelChecks, Only and
// Except are optional.
type Factory struct {
	// Name is the driver's column in the capability table.
	Name string
	// Class is the class of the sandboxes; empty means ClassContainer.
	Class runtime.Class
	// UserNamespace gives every sandbox its own user namespace.
	UserNamespace bool
	// Open opens the driver on a state directory. A second call for the same directory stands for
	// the next process of the orchestrator: the earlier driver was closed or is no longer used.
	Open func(t *testing.T, state string) runtime.Driver
	// Image is the sandbox image, unpacked and as an archive. Entrypoint is the command the image
	// needs before the guest.
	Image      runtime.Image
	Entrypoint []string
	// HostPID returns the host process that stands for a sandbox whose class hides its processes.
	// It is needed for classes other than ClassContainer.
	HostPID func(t *testing.T, id string) int
	// SkipKernelChecks skips what only the kernel and the guest provide, for a class whose kernel
	// another driver's run has checked in full.
	SkipKernelChecks bool
	// Only limits the run to the checks of these capabilities, and Except leaves these out. Two runs
	// can share the checks and run in parallel.
	Only, Except []runtime.Capability
	// Leftovers returns what an engine still has of a sandbox, beyond what is on the host.
	Leftovers func(t *testing.T, id string) []string
	// RemoveImage removes an image that the suite made from the engine.
	RemoveImage func(t *testing.T, image runtime.Image)
}

// check verifies that a capability holds, or that it is refused clearly where a driver lacks it. If
// absent is nil, only the table is compared.
type check struct {
	holds  func(*testing.T, *suite)
	absent func(*testing.T, *suite)
}

func checks() map[runtime.Capability]check {
	return map[runtime.Capability]check{
		runtime.CapNetworkNone:   {holds: checkNetworkNone},
		runtime.CapMemory:        {holds: checkMemoryCap},
		runtime.CapCPU:           {holds: checkCPUCap},
		runtime.CapPids:          {holds: checkPidsCap},
		runtime.CapReadOnlyRoot:  {holds: checkReadOnlyRoot},
		runtime.CapMountFlags:    {holds: checkMountFlags},
		runtime.CapCapabilities:  {holds: checkCapabilities},
		runtime.CapNoNewPrivs:    {holds: checkNoNewPrivs},
		runtime.CapSeccomp:       {holds: checkSeccomp},
		runtime.CapNonRoot:       {holds: checkNonRoot, absent: checkWithoutNonRoot},
		runtime.CapTmpfs:         {holds: checkTmpfs},
		runtime.CapNeutralConfig: {holds: checkNeutralConfig},
		runtime.CapKill:          {holds: checkKill},
		runtime.CapCommandCgroup: {holds: checkCommandCgroup, absent: checkNoCommandCgroup},
		runtime.CapUsage:         {holds: checkUsage, absent: checkNoUsage},
		runtime.CapEndingOOM:     {holds: checkEndingOOM, absent: checkNoEndingOOM},
		runtime.CapEndingPids:    {holds: checkEndingPids, absent: checkNoEndingPids},
		runtime.CapEndingDisk:    {holds: checkEndingDisk},
		runtime.CapLateBind:      {holds: checkLateBind, absent: checkNoLateBind},
		runtime.CapLateBindRO:    {holds: checkLateBindReadOnly, absent: checkNoLateBind},
		runtime.CapQuota:         {holds: checkQuota, absent: checkNoLateBind},
		runtime.CapFiles:         {holds: checkFiles, absent: checkFiles},
		runtime.CapAdopt:         {holds: checkAdopt, absent: checkNoAdopt},
		runtime.CapDeadMan:       {holds: checkOrphanTimeout},
		runtime.CapNothingLeft:   {holds: checkNothingLeft},
	}
}

// kernelCapabilities returns the capabilities that depend on the class's kernel and the guest, not
// on the driver.
func kernelCapabilities() []runtime.Capability {
	return []runtime.Capability{
		runtime.CapCapabilities, runtime.CapNoNewPrivs, runtime.CapSeccomp, runtime.CapNonRoot, runtime.CapTmpfs,
		runtime.CapKill,
		runtime.CapCommandCgroup, runtime.CapUsage, runtime.CapEndingOOM, runtime.CapEndingPids, runtime.CapEndingDisk,
	}
}

// suite is one run of the suite.
type suite struct {
	Factory
	driver runtime.Driver
	state  string
	owner  string
	// plain is a shared sandbox for checks that leave nothing behind and exhaust nothing.
	plain     *box
	isolation *isolationReport
}

// Run checks that a driver's capabilities equal its column in the table, and that they hold.
func Run(t *testing.T, f Factory) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	s := newSuite(t, f)
	if !t.Run("table", s.checkTable) {
		t.FailNow()
	}
	s.plain = s.newSandbox(t, nil)
	claimed := s.driver.Capabilities(s.Class)
	for _, name := range runtime.AllCapabilities() {
		if s.SkipKernelChecks && slices.Contains(kernelCapabilities(), name) ||
			slices.Contains(s.Except, name) || len(s.Only) > 0 && !slices.Contains(s.Only, name) {
			continue
		}
		t.Run(string(name), func(t *testing.T) {
			began := time.Now()
			defer func() { t.Logf("took %s", time.Since(began).Round(time.Millisecond)) }()
			switch c := checks()[name]; {
			case claimed.Has(name):
				c.holds(t, s)
			case c.absent != nil:
				c.absent(t, s)
			}
		})
	}
	if len(s.Only) > 0 {
		return
	}
	t.Run("connections", func(t *testing.T) { checkConnections(t, s) })
	if s.SkipKernelChecks {
		t.Run("refusals", s.checkRefusals)
		return
	}
	t.Run("command limits", func(t *testing.T) { checkCommandLimits(t, s) })
	t.Run("file tools", func(t *testing.T) { checkFileTools(t, s) })
	t.Run("workspace aliases", func(t *testing.T) { checkWorkspaceAliases(t, s) })
	t.Run("argument rules", func(t *testing.T) { checkArgvRules(t, s) })
	t.Run("refusals", s.checkRefusals)
}

func newSuite(t *testing.T, f Factory) *suite {
	t.Helper()
	// Short, because paths of Unix sockets are made from it.
	state, err := os.MkdirTemp("", "rt")
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{Factory: f, state: state, owner: "o" + randomName()}
	s.driver = f.Open(t, state)
	t.Cleanup(func() {
		s.removeLeftovers(t)
		if err := errors.Join(purge(s.driver), s.driver.Close(), os.RemoveAll(state)); err != nil {
			t.Error(err)
		}
	})
	if err := s.driver.Prepare(t.Context(), f.Image); err != nil {
		t.Fatal(err)
	}
	return s
}

// purge removes what a driver keeps in its engine for later sandboxes, if anything.
func purge(d runtime.Driver) error {
	p, ok := d.(interface{ Purge(context.Context) error })
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return p.Purge(ctx)
}

// removeLeftovers removes sandboxes that a failed test left and reports them.
func (s *suite) removeLeftovers(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	found, err := s.driver.List(ctx, s.owner)
	if err != nil {
		t.Error(err)
	}
	for _, f := range found {
		t.Errorf("sandbox %s left behind, want none", f.ID)
		if err := s.driver.Remove(ctx, f.ID); err != nil {
			t.Error(err)
		}
	}
}

func (s *suite) checkTable(t *testing.T) {
	table, err := Table()
	if err != nil {
		t.Fatal(err)
	}
	row, ok := table[s.Name]
	if !ok {
		t.Fatalf("the table has no column %q, want one per driver", s.Name)
	}
	have := s.driver.Capabilities(s.Class)
	for _, name := range runtime.AllCapabilities() {
		if have[name] != row[name] {
			t.Errorf("capability %s = %q, want %q as in the table", name, have[name], row[name])
		}
	}
	for name := range have {
		if !slices.Contains(runtime.AllCapabilities(), name) {
			t.Errorf("capability %q is unknown, want only those of AllCapabilities", name)
		}
	}
}

// randomName returns a short unique name.
func randomName() string {
	id := uuid.New()
	const letters = "abcdefghijklmnopqrstuvwxyz012345"
	b := make([]byte, 12)
	for i := range b {
		b[i] = letters[id[i]&31]
	}
	return string(b)
}
