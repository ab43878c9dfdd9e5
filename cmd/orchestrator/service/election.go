package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime/kubernetes"
)

const (
	// inheritInterval is how often a standby checks whether the holder on this machine has ended.
	inheritInterval = time.Second
	// listenTime is how long a new active process waits until the earlier one has closed its socket.
	listenTime = 10 * time.Second
)

// elect waits until this process is the active one for the state directory. It does nothing without
// an election.
func (s *service) elect(ctx context.Context, dir string) error {
	k := s.config.Kubernetes
	if s.config.Runtime != standalone.RuntimeKubernetes || !k.Election {
		return nil
	}
	var err error
	if s.owner, err = store.EnsureOwner(ctx, dir); err != nil {
		return err
	}
	place, err := placeOf(dir)
	if err != nil {
		return err
	}
	s.candidate, err = kubernetes.NewCandidate(ctx, kubernetes.ElectionOptions{
		Kubeconfig: k.Kubeconfig, Context: k.Context, Namespace: k.Namespace, Owner: s.owner, Place: place,
		LeaseTime: time.Duration(k.LeaseSeconds) * time.Second, Lost: s.exitLost, Log: s.log,
	})
	if err != nil {
		return err
	}
	s.onClose(s.candidate.Close)
	if err := s.inherit(ctx, dir); err != nil {
		return err
	}
	s.standby = newStandby(s)
	s.onClose(s.standby.close)
	s.epoch, err = s.candidate.Acquire(ctx, func(holder string) {
		s.standby.wait(fmt.Sprintf("process %q holds Lease %s", holder, s.candidate.Lease()))
		s.standby.inheritFrom(dir)
	})
	s.standby.endInheriting()
	if err == nil {
		s.log.Info("this process is active", "lease", s.candidate.Lease(), "epoch", s.epoch)
	}
	return err
}

// checkOwner refuses a state directory whose owner has changed since the election, which was for
// the Lease of the earlier one.
func (s *service) checkOwner(x *store.Examined) error {
	if s.owner == "" || x.Owner() == s.owner {
		return nil
	}
	return cli.Refuse(errdefs.ErrUnavailable,
		"state directory %s: state.db was put back during the start, and changed the owner from %s to %s: start again",
		s.config.StateDir, s.owner, x.Owner())
}

// inherit releases the Lease if its holder had the lock of the state directory, which is free.
func (s *service) inherit(ctx context.Context, dir string) error {
	lock, err := store.LockDir(dir)
	if errdefs.IsUnavailable(err) {
		return nil // the holder lives
	}
	if err != nil {
		return err
	}
	return errors.Join(s.candidate.Inherit(ctx), lock.Unlock())
}

// lockDir locks the state directory. With an election, it waits for an earlier process that has
// lost the Lease and must end, and for short commands.
func (s *service) lockDir(ctx context.Context, dir string) error {
	for {
		lock, err := store.LockDir(dir)
		switch {
		case err == nil:
			s.onClose(lock.Unlock)
			if s.candidate != nil {
				s.candidate.Locked()
			}
			return nil
		case s.candidate == nil || !errdefs.IsUnavailable(err):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		s.standby.wait(cli.WithoutClass(err.Error()))
	}
}

// openListener opens the socket, or takes that of the standby.
func (s *service) openListener(ctx context.Context) error {
	if s.standby != nil {
		var err error
		if s.listener, err = s.standby.stop(); err != nil {
			return err
		}
	}
	for end := time.Now().Add(listenTime); s.listener == nil; {
		l, err := listen(ctx, s.config)
		switch {
		case err == nil:
			s.listener = l
		case s.candidate == nil || !errdefs.IsUnavailable(err) || time.Now().After(end):
			return err
		default:
			if err := pause(ctx, inheritInterval/10); err != nil {
				return err
			}
		}
	}
	s.onClose(func() error { return ignoreClosed(s.listener.Close()) })
	return nil
}

// pause waits for d. It returns the cause of ctx if that ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// exitLost ends the process because it has lost the Lease. It does so at once: whatever the process
// did from now on might disturb the next one. Sandboxes and files are as after a crash. The process
// ends within a second even if nobody reads its standard error.
func (s *service) exitLost(err error) {
	time.AfterFunc(time.Second, func() { os.Exit(cli.ExitUnavailable) })
	s.log.Error("ending: this process is not the active one any more", "error", err)
	os.Exit(s.app.Finish(err))
}

// placeOf identifies the lock of a directory on this machine since its start.
func placeOf(dir string) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("identify this machine: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Clean(dir), &st); err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", strings.TrimSpace(string(boot)), st.Dev, st.Ino))
	return hex.EncodeToString(sum[:8]), nil
}
