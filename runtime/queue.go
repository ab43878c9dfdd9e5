package runtime

import "context"

// Queue says how the engine holds a sandbox before it starts.
type Queue struct {
	// Name is the engine's queue, or "".
	Name string
	// Suspended holds the sandbox until something else resumes it.
	Suspended bool
}

// A Queuer is a Driver whose engine can hold a sandbox in a queue of its own. Such a sandbox is
// listed, adopted and removed as others are, from Submit on.
type Queuer interface {
	Driver
	// CheckQueue returns an error of class FailedPrecondition that says why this engine cannot hold
	// sandboxes, and what to do about it.
	CheckQueue(ctx context.Context) error
	// Submit gives a sandbox to the engine and does not wait for its start. If the engine has it
	// already, Submit changes nothing.
	Submit(ctx context.Context, spec Spec, q Queue) error
	// AwaitStart waits until a submitted sandbox has started and its guest answers. It calls waiting
	// with the reason whenever that changes, and with "" once the sandbox starts. The time in the
	// queue is bounded by ctx only. If it fails, the engine keeps what it has: Remove withdraws the
	// sandbox. NotFound: something else has withdrawn it. Other errors are those of Create.
	AwaitStart(ctx context.Context, spec Spec, waiting func(reason string)) (Sandbox, error)
}
