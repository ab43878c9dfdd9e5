// Package runtime is the seam between the orchestrator and whatever makes
// containers: what a sandbox is asked to be (Spec, Limits), what a driver does
// (Driver, Sandbox), how a command ends (Ending, Result) and what a driver can
// do (Capability).
//
// The package decides nothing about callers, pools or policy, imports none of
// the project's other packages and starts no goroutine. Its errors are classed
// by github.com/containerd/errdefs: callers test with errdefs.IsNotFound and
// the like, and map the class to HTTP and exit codes in one place each.
package runtime

import (
	"context"
	"net"
)

// A Driver makes, finds and destroys sandboxes on one container engine.
//
// Every sandbox carries its owner (the state directory that made it), its id
// and its template, so that whatever a crash left is found by List. All
// methods may be called concurrently. The context bounds the whole call; a
// Create that was cut short has removed what it made, or left it where List
// finds it.
type Driver interface {
	// Name is the word the driver is chosen by: "docker", "containerd" or "oci".
	Name() string
	// Classes are the isolation classes it can make sandboxes of on this host,
	// from the weakest to the strongest.
	Classes() []Class
	// Capabilities tells what the driver enforces and offers on this host for
	// sandboxes of a class, nil for one that is not among its Classes. The suite
	// in runtimetest holds a driver to exactly this.
	Capabilities(class Class) Capabilities
	// Prepare makes the image usable for Create, loading it into the engine
	// where there is one. It is idempotent and cheap when nothing is to do.
	Prepare(ctx context.Context, image Image) error
	// Create starts a sandbox and returns when its first process runs; the
	// guest may need a few more milliseconds before Open succeeds. An error of
	// class InvalidArgument or FailedPrecondition names the field or cap of
	// the Spec that this host cannot give, and what to do about it.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Adopt takes over a running sandbox after a restart of the orchestrator.
	// NotFound: the engine knows no such sandbox, or its init has ended. Any
	// other error means "could not tell": the sandbox may well be alive.
	Adopt(ctx context.Context, id string) (Sandbox, error)
	// List returns every sandbox of owner that the engine or the host still
	// holds anything of, in any state, half-made and half-removed ones too.
	List(ctx context.Context, owner string) ([]Found, error)
	// Remove destroys a sandbox by id from any state, with everything the
	// driver made for it. Nothing there is success.
	Remove(ctx context.Context, id string) error
	// Close lets go of the engine. Sandboxes live on.
	Close() error
}

// A Sandbox is one running container with its guest. Methods may be called
// concurrently; Bind and Unbind are serialised by the caller.
type Sandbox interface {
	ID() string
	// Open opens a byte stream to the guest. It waits for the guest until ctx
	// ends. The guest serves exactly one request on a stream (see
	// internal/guest/wire). The bytes that come back are foreign.
	Open(ctx context.Context) (net.Conn, error)
	// Bind makes a host directory appear at /workspace, for a driver with
	// CapLateBind; others answer errdefs.ErrNotImplemented.
	Bind(ctx context.Context, b Binding) error
	// Unbind takes it away again. An error means that something inside still
	// holds the directory: the sandbox has to be destroyed before the
	// directory may be given to anybody else.
	Unbind(ctx context.Context) error
	// Done is closed when the first process has ended, however it ended.
	Done() <-chan struct{}
	// Destroy kills everything inside, removes the container and all that was
	// made for it. It is idempotent and waits until nothing is left.
	Destroy(ctx context.Context) error
	// Release lets go of the sandbox without touching it: the next process
	// adopts it. No method but ID may be called afterwards.
	Release() error
}

// Binding is a host directory given to a leased sandbox.
type Binding struct {
	// Source is an absolute host directory, no symbolic link in its last part.
	Source   string
	ReadOnly bool
}

// Found is what List knows of a sandbox.
type Found struct {
	ID       string
	Template string
	Build    string
	// Running says that its first process is alive as far as the engine knows.
	Running bool
}
