package runtime

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Class is how far a sandbox is from the host's kernel. The empty class is
// ClassContainer.
type Class string

// The classes, from the weakest wall to the strongest.
const (
	ClassContainer Class = "container" // namespaces, cgroups and seccomp on the host's kernel: runc, crun
	ClassGVisor    Class = "gvisor"    // a kernel in user space between commands and the host's: runsc
	ClassVM        Class = "vm"        // a kernel of its own in a virtual machine: kata
)

// AllClasses lists the classes from the weakest to the strongest.
func AllClasses() []Class { return []Class{ClassContainer, ClassGVisor, ClassVM} }

// ParseClass reads the name of a class; "" is ClassContainer.
func ParseClass(name string) (Class, error) {
	c := Class(name).OrDefault()
	if !slices.Contains(AllClasses(), c) {
		var known []string
		for _, k := range AllClasses() {
			known = append(known, string(k))
		}
		return "", fmt.Errorf("isolation class %q is not known: use %s: %w", name, strings.Join(known, ", "), errdefs.ErrInvalidArgument)
	}
	return c, nil
}

// OrDefault is the class itself, or ClassContainer for the empty one.
func (c Class) OrDefault() Class {
	if c == "" {
		return ClassContainer
	}
	return c
}

// AtLeast says whether c is as strong as least, or stronger. A class that is
// not known is as strong as none.
func (c Class) AtLeast(least Class) bool {
	have, want := slices.Index(AllClasses(), c.OrDefault()), slices.Index(AllClasses(), least.OrDefault())
	return have >= 0 && want >= 0 && have >= want
}
