package fake

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Options configures a Driver. The zero value is a driver over a new host.
type Options struct {
	// Name is the driver's name; empty means "fake".
	Name string
	// Host is the engine; nil makes a new one.
	Host *Host
	// Capabilities apply to each of the driver's classes; nil means all.
	Capabilities runtime.Capabilities
	// Classes are the classes the driver makes; nil means ClassContainer only.
	Classes []runtime.Class
	// NeedsUnpackedRoot is what the driver's method of this name returns.
	NeedsUnpackedRoot bool
	// Queue has the driver hold sandboxes in the host's queue; see Host.Resume.
	Queue bool
	// Serve is the guest's side of one stream; nil serves with Guest. It must return once ctx ends
	// or conn is closed. The driver closes conn afterwards.
	Serve func(ctx context.Context, id string, conn net.Conn)
}

// Driver is a runtime.Driver over a Host. It is safe for concurrent use.
type Driver struct {
	options Options
	host    *Host

	mu     sync.Mutex
	closed bool
}

var _ runtime.Driver = (*Driver)(nil)

// New returns a driver.
func New(o Options) *Driver {
	if o.Name == "" {
		o.Name = "fake"
	}
	if o.Host == nil {
		o.Host = &Host{}
	}
	if o.Classes == nil {
		o.Classes = []runtime.Class{runtime.ClassContainer}
	}
	if o.Capabilities == nil {
		o.Capabilities = runtime.AllYes()
	}
	return &Driver{options: o, host: o.Host}
}

// Host returns the engine of the driver.
func (d *Driver) Host() *Host { return d.host }

// Name implements runtime.Driver.
func (d *Driver) Name() string { return d.options.Name }

// NeedsUnpackedRoot implements runtime.Driver.
func (d *Driver) NeedsUnpackedRoot() bool { return d.options.NeedsUnpackedRoot }

// Capabilities implements runtime.Driver.
func (d *Driver) Capabilities(class runtime.Class) runtime.Capabilities {
	if !slices.Contains(d.Classes(), class.OrDefault()) {
		return nil
	}
	return maps.Clone(d.options.Capabilities)
}

// Classes implements runtime.Driver.
func (d *Driver) Classes() []runtime.Class { return d.options.Classes }

// Prepare implements runtime.Driver.
func (d *Driver) Prepare(ctx context.Context, image runtime.Image) error {
	if err := d.runHook(ctx, OpPrepare, image.ID); err != nil {
		return err
	}
	if image.ID == "" {
		return fmt.Errorf("prepare image %q: image has no id: %w", image.Ref, errdefs.ErrInvalidArgument)
	}
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	if !slices.Contains(d.host.images, image.ID) {
		d.host.images = append(d.host.images, image.ID)
	}
	return nil
}

// Create implements runtime.Driver.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := spec.RefuseUserNamespace(); err != nil {
		return nil, err
	}
	if err := d.runHook(ctx, OpCreate, spec.ID); err != nil {
		return nil, err
	}
	m := newContainer(spec)
	if err := d.host.add(m); err != nil {
		return nil, err
	}
	if err := d.runHook(ctx, OpCreated, spec.ID); err != nil {
		return nil, err
	}
	return d.sandbox(m), nil
}

// Adopt implements runtime.Driver.
func (d *Driver) Adopt(ctx context.Context, id string) (runtime.Sandbox, error) {
	if err := d.runHook(ctx, OpAdopt, id); err != nil {
		return nil, err
	}
	m := d.host.container(id)
	if m == nil || !m.isAlive() {
		return nil, fmt.Errorf("adopt sandbox %s: %w", id, errdefs.ErrNotFound)
	}
	return d.sandbox(m), nil
}

// List implements runtime.Driver.
func (d *Driver) List(ctx context.Context, owner string) ([]runtime.Found, error) {
	if err := d.runHook(ctx, OpList, owner); err != nil {
		return nil, err
	}
	d.host.mu.Lock()
	machines := slices.Collect(maps.Values(d.host.containers))
	var found []runtime.Found
	for _, q := range d.host.queue {
		if q.spec.Owner == owner {
			found = append(found, runtime.Found{ID: q.spec.ID, Template: q.spec.Template, Build: q.spec.Build})
		}
	}
	d.host.mu.Unlock()
	for _, m := range machines {
		if m.spec.Owner == owner {
			found = append(found, runtime.Found{ID: m.spec.ID, Template: m.spec.Template, Build: m.spec.Build,
				Running: m.isAlive()})
		}
	}
	slices.SortFunc(found, func(a, b runtime.Found) int { return strings.Compare(a.ID, b.ID) })
	return found, nil
}

// Remove implements runtime.Driver.
func (d *Driver) Remove(ctx context.Context, id string) error {
	if err := d.checkOpen(); err != nil {
		return err
	}
	return d.host.remove(ctx, id)
}

// Close implements runtime.Driver.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

func (d *Driver) checkOpen() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("driver %s is closed: %w", d.options.Name, errdefs.ErrUnavailable)
	}
	return nil
}

func (d *Driver) runHook(ctx context.Context, op Op, id string) error {
	if err := d.checkOpen(); err != nil {
		return err
	}
	return d.host.runHook(ctx, op, id)
}

func (d *Driver) sandbox(m *container) *Sandbox {
	serve := d.options.Serve
	if serve == nil {
		serve = func(ctx context.Context, _ string, conn net.Conn) { m.guest.Serve(ctx, conn) }
	}
	return &Sandbox{driver: d, container: m, serve: serve}
}
