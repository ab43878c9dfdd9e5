// Package runtimetest is the one suite that every driver passes. It shows, from inside sandboxes and with the guest as the only way in, that
// each capability a driver claims holds against a user who tries everything that is cheap to try; and that one it does not claim is absent
// openly. What is claimed is written down in a table, driver × capability, to which the suite holds drivers as well.
//
// [Run] needs root, a host that shares its processes with the sandboxes (so that it sees what is left of them) and an image with Python 3, bash
// and coreutils. It never looks into a driver: what it does on the host is to read /proc, /sys/fs/cgroup and the mount table, and to kill
// processes of sandboxes it made. Every sandbox it makes is removed at the end of its test, and looked for afterwards.
//
// No assertion here is about speed, but for one: a guest whose sandbox is full answers, as a rule within [AnswerTime]. Everything else
// that takes time is waited for up to [Patience]. The package starts goroutines for commands that run while a test looks at
// them, and waits for them.
package runtimetest

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// Patience is far more than anything takes on a busy machine.
	Patience = 2 * time.Minute
	// AnswerTime is within what a guest answers half of all pings while commands use up everything else. It is far more than it takes: the
	// machine may be busy with other tests.
	AnswerTime = 5 * time.Second
)

// Factory makes drivers of one kind. All fields but Left and Drop are needed.
type Factory struct {
	// Name is the driver's column in the committed table.
	Name string
	// Class is that of the sandboxes; empty is ClassContainer.
	Class runtime.Class
	// Open opens the driver on a state directory. Called again for the same one it is the next process of the orchestrator: the driver
	// before it was closed, or is not used any more.
	Open func(t *testing.T, state string) runtime.Driver
	// Image is the sandbox image, unpacked and as an archive; Entrypoint what it asks to have in front of the guest.
	Image      runtime.Image
	Entrypoint []string
	// HostPID is the process of the host that stands for a sandbox whose class hides its processes. Only for classes but ClassContainer.
	HostPID func(t *testing.T, id string) int
	// SkipKernelChecks leaves out what commands meet inside and no driver has a part in, for a class whose kernel another driver's run has shown whole.
	SkipKernelChecks bool
	// Leftovers tells what an engine still has of a sandbox, beyond what is on the host.
	Leftovers func(t *testing.T, id string) []string
	// RemoveImage lets the engine forget an image that the suite made.
	RemoveImage func(t *testing.T, image runtime.Image)
}

// check shows that a capability holds, and that one a driver has not is absent openly. Where absent is nil only the table tells.
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

// kernelCapabilities are the capabilities that a class's kernel and the guest give, whatever driver has started them.
func kernelCapabilities() []runtime.Capability {
	return []runtime.Capability{
		runtime.CapCapabilities, runtime.CapNoNewPrivs, runtime.CapSeccomp, runtime.CapNonRoot, runtime.CapTmpfs, runtime.CapKill,
		runtime.CapCommandCgroup, runtime.CapUsage, runtime.CapEndingOOM, runtime.CapEndingPids, runtime.CapEndingDisk,
	}
}

// suite is one run.
type suite struct {
	Factory
	driver runtime.Driver
	state  string
	owner  string
	// plain is a sandbox for checks that leave nothing behind and use nothing up.
	plain     *box
	isolation *isolationReport
}

// Run holds a driver to the table and to what the table says.
func Run(t *testing.T, f Factory) {
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
		if s.SkipKernelChecks && slices.Contains(kernelCapabilities(), name) {
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
	t.Run("connections", func(t *testing.T) { checkConnections(t, s) })
	if s.SkipKernelChecks {
		t.Run("refusals", s.checkRefusals)
		return
	}
	t.Run("a command's own caps", func(t *testing.T) { checkCommandLimits(t, s) })
	t.Run("what tools do with files", func(t *testing.T) { checkFileTools(t, s) })
	t.Run("further names of the workspace", func(t *testing.T) { checkWorkspaceAliases(t, s) })
	t.Run("arguments are decided on inside", func(t *testing.T) { checkArgvRules(t, s) })
	t.Run("refusals", s.checkRefusals)
}

func newSuite(t *testing.T, f Factory) *suite {
	// Short, because paths of unix sockets are made from it.
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

// purge removes what a driver keeps in its engine for sandboxes to come, if it keeps anything.
func purge(d runtime.Driver) error {
	p, ok := d.(interface{ Purge(context.Context) error })
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return p.Purge(ctx)
}

// removeLeftovers removes what a failed test left, and says so.
func (s *suite) removeLeftovers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	found, err := s.driver.List(ctx, s.owner)
	if err != nil {
		t.Error(err)
	}
	for _, f := range found {
		t.Errorf("sandbox %s was left", f.ID)
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
		t.Fatalf("the table has no column %q", s.Name)
	}
	have := s.driver.Capabilities(s.Class)
	for _, name := range runtime.AllCapabilities() {
		if have[name] != row[name] {
			t.Errorf("%s: the driver says %q, the table %q", name, have[name], row[name])
		}
	}
	for name := range have {
		if !slices.Contains(runtime.AllCapabilities(), name) {
			t.Errorf("the driver has a capability %q that nobody knows", name)
		}
	}
}

// randomName is a short name that nothing else has.
func randomName() string {
	id := uuid.New()
	const letters = "abcdefghijklmnopqrstuvwxyz012345"
	b := make([]byte, 12)
	for i := range b {
		b[i] = letters[id[i]&31]
	}
	return string(b)
}
