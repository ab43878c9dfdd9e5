// Package runtime is the interface between the orchestrator and the container engines: what a
// sandbox is made from (Spec, Limits), what a driver does (Driver, Sandbox), how a command ends
// (Ending, Result), and what a driver can do (Capability).
//
// It makes no decisions about callers, pools or policy, imports none of the project's other
// packages, and starts no goroutine. Its errors are classed by github.com/containerd/errdefs:
// callers test with errdefs.IsNotFound and the like.
package runtime

import (
	"context"
	"net"
	"os"
)

// A Driver creates, finds and destroys sandboxes on one container engine.
//
// Every sandbox carries its owner (the state directory that made it), its id and its template, so
// that List finds whatever a crash left. All methods may be called concurrently. The context bounds
// the whole call. A Create that was cut short has removed what it made, or left it where List finds
// it.
type Driver interface {
	// Name is the name that selects the driver: "docker", "containerd", "oci" or "kubernetes".
	Name() string
	// NeedsUnpackedRoot reports whether Prepare and Create need Image.Root. Other drivers get images
	// without it.
	NeedsUnpackedRoot() bool
	// Classes returns the isolation classes that the driver offers on this host, from the weakest
	// to the strongest.
	Classes() []Class
	// Capabilities returns what the driver enforces and offers on this host for sandboxes of a
	// class, or nil for a class that is not among Classes. The suite in runtimetest verifies
	// exactly this.
	Capabilities(class Class) Capabilities
	// Prepare makes the image usable for Create; it loads it into the engine if there is one. It is
	// idempotent, and cheap if there is nothing to do.
	Prepare(ctx context.Context, image Image) error
	// Create starts a sandbox and returns when its first process runs. The guest may need a few
	// more milliseconds before Open succeeds. An error of class InvalidArgument or
	// FailedPrecondition names the field or cap of the Spec that this host cannot provide, and what
	// to do about it.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Adopt takes over a running sandbox after a restart of the orchestrator. NotFound: the engine
	// does not know the sandbox, or its first process has ended. After any other error the sandbox
	// may still be alive.
	Adopt(ctx context.Context, id string) (Sandbox, error)
	// List returns every sandbox of owner of which the engine or the host still holds anything, in
	// any state, including half-made and half-removed ones.
	List(ctx context.Context, owner string) ([]Found, error)
	// Remove destroys a sandbox by id, from any state, with everything the driver made for it. It
	// succeeds if there is nothing left to remove.
	Remove(ctx context.Context, id string) error
	// Close disconnects from the engine. Sandboxes keep running.
	Close() error
}

// UserNamespacer is implemented by drivers that can give each sandbox its own user namespace.
type UserNamespacer interface {
	// CheckUserNamespace returns why sandboxes of a class cannot have one on this host, and what
	// to do about it, or nil. It is cheap after the first call.
	CheckUserNamespace(ctx context.Context, class Class) error
}

// A Sandbox is one running container with its guest. Methods may be called concurrently, except
// Bind and Unbind, which the caller serialises.
type Sandbox interface {
	ID() string
	// Open opens a byte stream to the guest. It waits for the guest until ctx ends. The guest
	// serves exactly one request per stream (see internal/guest/wire). The bytes it sends are
	// untrusted.
	Open(ctx context.Context) (net.Conn, error)
	// Bind mounts a host directory at /workspace, if the driver has CapLateBind. Other drivers
	// return errdefs.ErrNotImplemented.
	Bind(ctx context.Context, b Binding) error
	// Unbind unmounts it. After an error something inside still uses the directory: destroy the
	// sandbox before another one gets the directory.
	Unbind(ctx context.Context) error
	// Done is closed when the first process has ended, however it ended.
	Done() <-chan struct{}
	// Destroy kills everything inside and removes the container and all that was made for it. It is
	// idempotent, and waits until nothing is left.
	Destroy(ctx context.Context) error
	// Release gives up the sandbox without touching it, so that the next process can adopt it. Only
	// ID may be called afterwards.
	Release() error
}

// Binding is a host directory for a leased sandbox.
type Binding struct {
	// Source is an absolute host directory. Its last element must not be a symbolic link.
	Source   string
	ReadOnly bool
	// OwnersMapped says that Source was mounted for the user namespace of this sandbox.
	// Otherwise the driver makes its files appear with their owners.
	OwnersMapped bool
}

// UserNamespaced is implemented by sandboxes of drivers that implement UserNamespacer.
type UserNamespaced interface {
	// UserNamespace returns a descriptor of the sandbox's user namespace, valid until the
	// sandbox is released, or nil if it has none of its own.
	UserNamespace() *os.File
}

// Found describes a sandbox that List found.
type Found struct {
	ID       string
	Template string
	Build    string
	// Running reports whether its first process is alive, as far as the engine knows.
	Running bool
}
