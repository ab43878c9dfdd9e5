// Package stage names the stages of a call and tells an observer when each begins and ends.
//
// It measures nothing itself and starts no goroutine.
package stage

import "context"

// Name is the name of a stage. There are only those below, so that it can be a label of a metric.
type Name string

// The stages. Call is a whole tool call. Lease contains Queue and Bind. Release runs in the
// background, after the caller has its answer.
const (
	Call     Name = "call"
	Policy   Name = "policy"   // validate the input, and ask the policy
	Audit    Name = "audit"    // wait until the opening audit record is durable
	Approval Name = "approval" // ask the approval rules, and wait for an approver
	Lease    Name = "lease"    // get a sandbox and prepare it for the caller
	Queue    Name = "queue"    // wait for quota, and for a sandbox of the pool
	Bind     Name = "bind"     // mount the workspace, and claim the guest
	Exec     Name = "exec"     // run the command, as the host sees it
	Release  Name = "release"  // kill what is left, and remove the sandbox
)

// Names returns all stages in the order of a call.
func Names() []Name { return []Name{Call, Policy, Audit, Approval, Lease, Queue, Bind, Exec, Release} }

// Observer is told about stages. Its methods may be called concurrently.
type Observer interface {
	// Begin is called when a stage begins. The stage's work runs with the returned context. The
	// returned function is called once, with the error that the stage ended with.
	Begin(ctx context.Context, name Name) (context.Context, func(error))
}

// Begin tells o that a stage begins. o may be nil. Call end once when the stage ends.
func Begin(ctx context.Context, o Observer, name Name) (in context.Context, end func(error)) {
	if o == nil {
		return ctx, func(error) {}
	}
	return o.Begin(ctx, name)
}

// Time runs do as a stage and returns its error. o may be nil.
func Time(ctx context.Context, o Observer, name Name, do func(context.Context) error) error {
	ctx, end := Begin(ctx, o, name)
	err := do(ctx)
	end(err)
	return err
}

// Join returns an observer that tells all of list, in this order. It returns nil for none.
func Join(list ...Observer) Observer {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return joined(list)
}

type joined []Observer

// Begin implements Observer.
func (j joined) Begin(ctx context.Context, name Name) (context.Context, func(error)) {
	ends := make([]func(error), len(j))
	for i, o := range j {
		ctx, ends[i] = o.Begin(ctx, name) //nolint:fatcontext // each observer adds to what the one before it made
	}
	return ctx, func(err error) {
		for _, end := range ends {
			end(err)
		}
	}
}
