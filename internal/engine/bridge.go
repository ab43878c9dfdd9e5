package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// bridgePorts are where programs look for what is neither TLS at 443 nor plain
// HTTP at 80: SSH, other ports of HTTP and TLS, git. Mail is left out: it is what
// a sandbox that sends something to everybody would send.
var bridgePorts = []int{22, 3000, 5000, 8000, 8080, 8443, 8888, 9418, 11371}

// bridgeEgress is what a profile's network of that name means: all public egress, by
// way of the gateway. What is not public stays refused there.
func bridgeEgress() *toolEgress {
	var rules []netpolicy.Rule
	for _, host := range []string{"*", "0.0.0.0/0", "::/0"} {
		rules = append(rules,
			netpolicy.Rule{Host: host, Protocol: netpolicy.TLS}, netpolicy.Rule{Host: host, Protocol: netpolicy.HTTP},
			netpolicy.Rule{Host: host, Ports: slices.Clone(bridgePorts), Protocol: netpolicy.TCP},
		)
	}
	return &toolEgress{Rules: rules}
}

// applyNetwork adds to a lease of the call what its profile says of the network.
func (t *toolCall) applyNetwork(a *acquisition) {
	if t.profile.Profile.Network == profile.NetworkBridge {
		a.egress, a.network = bridgeEgress(), profile.NetworkBridge
	}
}

// findLease gives a live lease of the caller, by its id. What was leased with the
// network of a profile is not for calls of a profile without: another token of
// the same caller would get by it what it was not given.
func (e *Engine) findLease(ctx context.Context, call Call, id string) (*scheduler.Lease, error) {
	l, err := e.sched.Lease(ctx, call.Caller, id)
	if err == nil {
		err = e.checkNetwork(call, l)
	}
	return l, err
}

func (e *Engine) checkNetwork(call Call, l *scheduler.Lease) error {
	if l.Network == "" || call.Operator {
		return nil
	}
	if g := e.opts.Governance; g != nil {
		p, err := g.profile(e.profileOf(call))
		if err == nil && p.Profile.Network == l.Network {
			return nil
		}
	}
	return usererror.Errorf(errdefs.ErrPermissionDenied, "sandbox %s has the network of another profile, which this caller's has not", l.ID)
}

// checkSessionNetwork refuses a session whose sandbox reaches nothing to a profile that
// promises that it does.
func (t *toolCall) checkSessionNetwork(ctx context.Context, l *scheduler.Lease) error {
	if t.profile.Profile.Network != profile.NetworkBridge {
		return nil
	}
	row, err := t.e.sched.Row(ctx, t.call.Caller, l.ID)
	if err != nil || row.Lease.Egress != nil {
		return err
	}
	return &InvalidError{
		Field: "session", Class: errdefs.ErrFailedPrecondition,
		Message: fmt.Sprintf("has a sandbox that reaches nothing, and profile %s has network bridge: end the session, or take another", t.profile.Profile.Name),
	}
}
