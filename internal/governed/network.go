package governed

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// bridgePorts lists the TCP ports that network bridge allows besides TLS at 443 and HTTP at 80:
// SSH, alternative HTTP and TLS ports, git and key servers. Mail ports are left out because
// sandboxes could send spam.
var bridgePorts = []int{22, 3000, 5000, 8000, 8080, 8443, 8888, 9418, 11371}

// bridgeEgress returns the egress of a profile with network bridge: all public addresses, through
// the gateway. The gateway still refuses private addresses.
func bridgeEgress() *core.Egress {
	hosts := []string{"*", "0.0.0.0/0", "::/0"}
	rules := make([]netpolicy.Rule, 0, 3*len(hosts))
	for _, host := range hosts {
		rules = append(rules,
			netpolicy.Rule{Host: host, Protocol: netpolicy.TLS}, netpolicy.Rule{Host: host, Protocol: netpolicy.HTTP},
			netpolicy.Rule{Host: host, Ports: slices.Clone(bridgePorts), Protocol: netpolicy.TCP},
		)
	}
	return &core.Egress{Rules: rules}
}

// applyNetwork adds the profile's network to the lease request.
func (t *transaction) applyNetwork(a *core.Acquisition) {
	if t.profile.Profile.Network == profile.NetworkBridge {
		a.Egress, a.Network = bridgeEgress(), profile.NetworkBridge
	}
}

// CheckNetwork returns an error of class PermissionDenied if the lease has a network that the
// caller's profile does not allow.
func (s *Service) CheckNetwork(principal caller.Principal, l *scheduler.Lease) error {
	if l.Network == "" || principal.Operator {
		return nil
	}
	if g := s.opts.Config; g != nil {
		p, err := g.profile(s.profileOf(principal))
		if err == nil && p.Profile.Network == l.Network {
			return nil
		}
	}
	return usererror.Errorf(
		errdefs.ErrPermissionDenied,
		"sandbox %s has a network that this caller's profile does not allow",
		l.ID,
	)
}

// checkSessionNetwork refuses a session whose sandbox has no egress if the profile has network
// bridge.
func (t *transaction) checkSessionNetwork(ctx context.Context, l *scheduler.Lease) error {
	if t.profile.Profile.Network != profile.NetworkBridge {
		return nil
	}
	row, err := t.s.opts.Scheduler.Row(ctx, t.principal.Caller, l.ID)
	if err != nil || row.Lease.Egress != nil {
		return err
	}
	return &usererror.InvalidError{
		Field: "session", Class: errdefs.ErrFailedPrecondition,
		Message: fmt.Sprintf(
			"has a sandbox without egress, and profile %s has network bridge: end the session or use another",
			t.profile.Profile.Name,
		),
	}
}
