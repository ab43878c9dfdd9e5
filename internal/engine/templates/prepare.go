package templates

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// prepare resolves a template's image, checks the template against the host and prepares the image
// in the driver.
func (s *Service) prepare(ctx context.Context, t *scheduler.Template) error {
	img, err := s.resolveImage(ctx, t.Spec.Image.Ref)
	if err != nil {
		return err
	}
	// Leave the root out where it is not needed: one that comes and goes would change the
	// template's fingerprint after a restart.
	img.Root = ""
	if s.opts.Driver.NeedsUnpackedRoot() {
		if img.Root, err = s.opts.Images.Root(ctx, img); err != nil {
			return err
		}
	}
	t.Spec.Image = img
	t.Spec.Limits = t.Spec.Limits.WithDefaults()
	// Query only this class: probing all classes takes a driver seconds on a new host.
	if class := t.Spec.Class.OrDefault(); s.opts.Driver.Capabilities(class) == nil {
		why := error(errdefs.ErrFailedPrecondition)
		if d, ok := s.opts.Driver.(interface {
			Why(class runtime.Class) error
		}); ok {
			why = cmp.Or(d.Why(class), why) // names what to install or to set
		}
		return fmt.Errorf(
			"class %s: runtime %s does not support it on this host; it supports %v: %w",
			class,
			s.opts.Driver.Name(),
			s.opts.Driver.Classes(),
			why,
		)
	}
	if err := s.chooseUserNamespace(ctx, t); err != nil {
		return err
	}
	if need := t.Spec.Limits.MemoryBytes; need > s.opts.MaxMemory {
		return fmt.Errorf(
			"limits.memory is %d bytes and admission.max_memory %d: no sandbox of it can be created: %w",
			need,
			s.opts.MaxMemory,
			errdefs.ErrFailedPrecondition,
		)
	}
	if err := checkMountPoints(img, t.Spec.Tmpfs); err != nil {
		return err
	}
	return s.opts.Driver.Prepare(ctx, img)
}

// chooseUserNamespace decides whether the template's sandboxes have user namespaces. It fails if
// they must, and cannot.
func (s *Service) chooseUserNamespace(ctx context.Context, t *scheduler.Template) error {
	if !t.Spec.UserNamespace && !t.AutoUserNamespace {
		return nil
	}
	why := fmt.Errorf("it has none by template; use runtime oci or containerd, user_namespace host, or on Kubernetes "+
		"kubernetes.pod.user_namespaces: %w", errdefs.ErrFailedPrecondition)
	if d, ok := s.opts.Driver.(runtime.UserNamespacer); ok {
		why = d.CheckUserNamespace(ctx, t.Spec.Class)
	}
	if why != nil && t.Spec.UserNamespace {
		return fmt.Errorf("user_namespace: runtime %s: %w", s.opts.Driver.Name(), why)
	}
	if t.Spec.UserNamespace = why == nil; why != nil {
		s.opts.Log.Warn("template works without user namespaces, although user_namespace is auto; reload templates to try again",
			"template", t.Name, "runtime", s.opts.Driver.Name(), "error", why)
	}
	return nil
}

// resolveImage returns an image of the store, or of the driver if its engine pulls images itself.
func (s *Service) resolveImage(ctx context.Context, ref string) (runtime.Image, error) {
	if r, ok := s.opts.Driver.(runtime.ImageResolver); ok {
		return r.ResolveImage(ctx, ref)
	}
	return s.opts.Images.Resolve(ref)
}
