package templates

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Resolve sets the template of a request that names none, and refuses a template that is
// weaker than the requested class. Without a name it uses the default template if that is strong
// enough, else the first by name that is.
func (s *Service) Resolve(r *v1.SandboxRequest) error {
	least, err := runtime.ParseClass(r.Class)
	if err != nil {
		return usererror.Invalid("class", "%q is not known: use container, gvisor or vm", r.Class)
	}
	named := r.Template != ""
	if !named {
		r.Template = s.opts.DefaultTemplate
	}
	t, known := s.sched.Template(r.Template)
	if r.Class == "" || named && !known || known && t.Spec.Class.AtLeast(least) {
		return nil // checkTemplate reports an unknown name
	}
	strong := s.templatesOfClass(least)
	if !named && len(strong) > 0 {
		r.Template = strong[0]
		return nil
	}
	which := fmt.Sprintf("no template is of class %s or stronger: add one (class: %s)", least, least)
	if len(strong) > 0 {
		which = "use " + strings.Join(strong, " or ")
	}
	weak := "the templates are weaker than " + string(least)
	if known {
		weak = fmt.Sprintf("template %s is of class %s, weaker than %s", r.Template, t.Spec.Class.OrDefault(), least)
	}
	return &usererror.InvalidError{Field: "class", Message: weak + ": " + which, Class: errdefs.ErrFailedPrecondition}
}

// templatesOfClass returns the templates of at least the class least, sorted by name.
func (s *Service) templatesOfClass(least runtime.Class) []string {
	var names []string
	for _, name := range s.sched.Templates() {
		if t, ok := s.sched.Template(name); ok && t.Spec.Class.AtLeast(least) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
