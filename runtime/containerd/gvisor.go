package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// DefaultGVisor is the program for sandboxes of class gvisor unless Options names another.
	DefaultGVisor = gvisor.DefaultProgram
	// runscName is the directory in which runsc keeps its state, with a subdirectory per sandbox:
	// runsc names files by the sandbox, where runc makes a directory.
	runscName = "runsc"
	// cgroupsName is the file in there with the sandbox's cgroups, one per line.
	cgroupsName = "cgroups"
)

// launcher is the program that the shim of runc starts instead of runc. It passes its arguments to
// runsc after our own flags. For a create it first joins the sandbox's cgroups, so that runsc and
// everything it starts are capped from their first instruction. The last argument is the sandbox.
// The verbs are a directory, and a program with flags, quoted.
const launcher = `#!/bin/sh
# Written by the orchestrator, and again whenever it starts.
making=
for last; do
	[ "$last" != create ] || making=yes
done
if [ -n "$making" ]; then
	while read -r cgroup; do
		echo $$ >"$cgroup/cgroup.procs" || exit 125
	done <%s/"$last"/` + cgroupsName + ` || exit 125
fi
exec %s "$@"
`

// launcherOf is the path of the launcher for a platform.
func (d *Driver) launcherOf(platform string) string { return filepath.Join(d.dir, "launch-"+platform) }

// gvisorHandler writes the launcher and returns the handler that uses it. Running shims keep
// reading the old file.
func (d *Driver) gvisorHandler(g *gvisor.Program) (handler, error) {
	words := append([]string{g.Path, "--platform=" + g.Platform, "--ignore-cgroups"}, g.Flags...)
	for i, w := range words {
		words[i] = quoted(w)
	}
	path := d.launcherOf(g.Platform)
	text := fmt.Sprintf(launcher, quoted(filepath.Join(d.dir, runscName)), strings.Join(words, " "))
	if had, err := os.ReadFile(path); err == nil && string(had) == text {
		return handler{shim: runcShim, binary: path, release: g.Release}, nil
	}
	if err := hostfile.ReplaceSynced(path, []byte(text), 0o700, nil); err != nil {
		return handler{}, fmt.Errorf("launcher for class gvisor: %w", err)
	}
	return handler{shim: runcShim, binary: path, release: g.Release}, nil
}

// quoted quotes a word for the shell.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// runscState is the directory with runsc's state of a sandbox. It exists as soon as anything of
// gVisor was made.
func (d *Driver) runscState(id string) string { return filepath.Join(d.dir, runscName, id) }

// runtimeRootOf is where a sandbox's runtime keeps its state; the shim adds the namespace to the
// path.
func (d *Driver) runtimeRootOf(id string, class runtime.Class) string {
	if class == runtime.ClassGVisor {
		return d.runscState(id)
	}
	return d.runtimeRoot()
}

// makeGVisorCgroups creates the cgroups that the launcher joins, and writes their names for it.
func (d *Driver) makeGVisorCgroups(id string, l runtime.Limits) error {
	state := d.runscState(id)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("state of gVisor: %w", err)
	}
	dirs, err := host.MakeGVisorCgroups(id, l)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(state, cgroupsName), []byte(strings.Join(dirs, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("state of gVisor: %w", err)
	}
	return nil
}
