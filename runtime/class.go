package runtime

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Class is a level of isolation from the host's kernel. The empty class means ClassContainer.
type Class string

// The classes, from the weakest isolation to the strongest.
const (
	ClassContainer Class = "container" // namespaces, cgroups and seccomp on the host's kernel: runc, crun
	ClassGVisor    Class = "gvisor"    // a user-space kernel between the commands and the host's: runsc
	ClassVM        Class = "vm"        // a separate kernel in a virtual machine: kata
)

// AllClasses returns the classes from the weakest to the strongest.
func AllClasses() []Class { return []Class{ClassContainer, ClassGVisor, ClassVM} }

// ParseClass returns the class with this name. The empty name means ClassContainer.
func ParseClass(name string) (Class, error) {
	c := Class(name).OrDefault()
	if !slices.Contains(AllClasses(), c) {
		classes := AllClasses()
		known := make([]string, 0, len(classes))
		for _, k := range classes {
			known = append(known, string(k))
		}
		return "", fmt.Errorf("isolation class %q is not known: use %s: %w", name, strings.Join(known, ", "),
			errdefs.ErrInvalidArgument)
	}
	return c, nil
}

// OrDefault returns c, or ClassContainer if c is empty.
func (c Class) OrDefault() Class {
	if c == "" {
		return ClassContainer
	}
	return c
}

// AtLeast reports whether c isolates as well as least, or better. An unknown class is never strong
// enough.
func (c Class) AtLeast(least Class) bool {
	have, want := slices.Index(AllClasses(), c.OrDefault()), slices.Index(AllClasses(), least.OrDefault())
	return have >= 0 && want >= 0 && have >= want
}
