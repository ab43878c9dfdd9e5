package profile

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/expr"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool/builtin"
)

// Compiled is a profile that is ready for calls.
type Compiled struct {
	// Profile is the source profile, merged with those it extends.
	Profile Profile
	// Source is BuiltIn or the name of the file.
	Source string

	tools  map[string]*CompiledTool
	byForm map[string]*CompiledTool // by MCP name
	order  []*CompiledTool

	policy    *policy.Policy
	approvals *approval.Rules
}

// Policy returns the command policy for tools without a separate one.
func (c *Compiled) Policy() *policy.Policy { return c.policy }

// Approvals returns the approval rules for calls.
func (c *Compiled) Approvals() *approval.Rules { return c.approvals }

// Variables of expressions and fields of templates.
var (
	inputNames = []string{"input", "call"}
	endNames   = []string{"r", "input", "call", "end"}
	textNames  = append(slices.Clone(endNames), "result")
)

// endings maps the endings that Tool.Errors accepts to their classes.
var endings = map[string][]string{
	"ok": nil, "started": nil, "exited": nil, "signalled": nil, "timeout": nil, "cancelled": nil,
	"oom": nil, "pids": nil, "disk": nil, "output_limit": nil, "sandbox_lost": nil,
	EndingFailed: {ClassNotFound, ClassPermission, ClassInvalid, ClassLimit, ClassExists, ClassNetwork},
	EndingPolicy: {
		ClassNever, "rule", "allowlist", "denylist", "forbidden", "unknown", "syntax", "empty", ClassLimit, "path",
		"argument", "default",
		ClassTrust, ClassDisabled, ClassRate, ClassQuota,
	},
	EndingApproval: {ClassRefused, ClassExpired, ClassBudget, ClassRuled},
	EndingInvalid:  {"missing", "unknown", "type", "value"},
}

func compile(d *draft) (*Compiled, error) {
	p, err := decode(d)
	if err != nil {
		return nil, err
	}
	c := &Compiled{Profile: p, Source: d.files[0].file, tools: map[string]*CompiledTool{},
		byForm: map[string]*CompiledTool{}}
	if d.files[0].builtin {
		c.Source = BuiltIn
	}
	if err := checkSettings(d, &p); err != nil {
		return nil, err
	}
	if len(p.Tools) == 0 {
		return nil, d.fail("", "tools", "has no tools: add some, or extend a profile with tools")
	}
	for i, t := range p.Tools {
		form := mcpName(t.Name)
		if other, ok := c.byForm[form]; ok {
			return nil, d.fail(toolPath(i), "name", "is %q, which equals %q (MCP replaces dots by underscores)",
				t.Name, other.spec.Name)
		}
		k := &toolCompiler{d: d, at: toolPath(i), profile: c, spec: t}
		ct, err := k.compile()
		if err != nil {
			return nil, err
		}
		c.tools[t.Name], c.byForm[form] = ct, ct
		c.order = append(c.order, ct)
	}
	if c.policy, err = compilePolicy(p.Policy, func(field, reason string) error {
		part, rest := policyPart(field)
		return d.fail(part, rest, "%s", reason)
	}); err != nil {
		return nil, err
	}
	if err := c.compileApprovals(d); err != nil {
		return nil, err
	}
	return c, nil
}

// compilePolicy compiles a command policy. fail returns the error for an invalid field.
func compilePolicy(r policy.Rules, fail func(field, reason string) error) (*policy.Policy, error) {
	p, err := policy.Compile(r)
	if err == nil {
		return p, nil
	}
	if e, ok := errors.AsType[*policy.RuleError](err); ok {
		return nil, fail(e.Path, e.Reason)
	}
	return nil, fail("", withoutClass(err))
}

// policyPart splits a path in a policy into the part that a file may define alone, and a field of
// it.
func policyPart(field string) (part, rest string) {
	if !strings.HasPrefix(field, "rules[") {
		return "", joinField("policy", field)
	}
	part, rest, _ = strings.Cut(field, "]")
	return "policy." + part + "]", strings.TrimPrefix(rest, ".")
}

// rules compiles the approval rules. A rule for an unknown tool never matches, which is dangerous
// if it denies, so it is an error.
func (c *Compiled) compileApprovals(d *draft) error {
	for i, r := range c.Profile.Approvals {
		if !slices.ContainsFunc(c.order, func(t *CompiledTool) bool {
			ok, err := path.Match(r.Tool, t.spec.Name)
			return ok || err != nil
		}) {
			names := make([]string, len(c.order))
			for i, t := range c.order {
				names[i] = t.spec.Name
			}
			return d.fail(fmt.Sprintf("approvals[%d]", i), "tool", "is %q: tool not found%s (tools: %s)",
				clip.Message(r.Tool), nearest(r.Tool, names), strings.Join(names, ", "))
		}
	}
	var err error
	if c.approvals, err = approval.Compile(c.Profile.Approvals); err == nil {
		return nil
	}
	e, ok := errors.AsType[*approval.RuleError](err)
	if !ok {
		return d.fail("", "approvals", "%s", withoutClass(err))
	}
	part, field := e.Path, ""
	if i := strings.Index(part, "]."); i >= 0 {
		part, field = part[:i+1], part[i+2:]
	}
	return d.fail(part, field, "%s", strings.TrimSuffix(e.Reason, ": invalid argument"))
}

func checkSettings(d *draft, p *Profile) error {
	if err := checkOneOf(d, "", "raise_trust", string(p.RaiseTrust), "", "deny", "prompt"); err != nil {
		return err
	}
	if err := checkOneOf(d, "", "workspace", p.Workspace, "", WorkspaceNone, WorkspaceCaller,
		WorkspaceJob); err != nil {
		return err
	}
	if err := checkOneOf(d, "", "network", p.Network, "", NetworkNone, NetworkBridge); err != nil {
		return err
	}
	for _, from := range slices.Sorted(maps.Keys(p.Paths)) {
		to := p.Paths[from]
		for _, dir := range []string{from, to} {
			if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" || strings.ContainsRune(dir, 0) {
				return d.fail("", join("paths", from), "maps %q to %q: both must be absolute, clean and not the root",
					clip.Message(from), clip.Message(to))
			}
		}
	}
	return nil
}

// oneOf checks that a field has one of the allowed values.
func checkOneOf(d *draft, at, field, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	allowed = slices.DeleteFunc(allowed, func(s string) bool { return s == "" })
	return d.fail(at, field, "is %q: use %s%s", clip.Message(value), strings.Join(allowed, ", "), nearest(value, allowed))
}

// toolCompiler compiles one tool of a profile.
type toolCompiler struct {
	d       *draft
	at      string
	profile *Compiled
	spec    Tool
	out     *CompiledTool
}

func (k *toolCompiler) fail(field, format string, args ...any) error {
	return k.d.fail(k.at, field, format, args...)
}

func (k *toolCompiler) compile() (*CompiledTool, error) {
	k.out = &CompiledTool{spec: k.spec, profile: k.profile, errors: map[string]*toolError{}}
	for _, step := range []func() error{k.base, k.limits, k.schema, k.expressions, k.texts, k.policy, k.caps} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return k.out, nil
}

func (k *toolCompiler) base() error {
	if k.spec.Bases != "" {
		if k.spec.Base != "" {
			return k.fail("bases", "cannot be combined with base")
		}
		if k.spec.Input == nil || k.spec.Arguments == "" || k.spec.Effects == nil || k.spec.Trust == nil {
			return k.fail("bases",
				"requires input, arguments, effects and trust, because the tool has no fixed built-in tool")
		}
		return nil
	}
	name := k.spec.Base
	if name == "" {
		name = k.spec.Name
	}
	t, ok := builtin.Get(name)
	if !ok && k.spec.Disabled && k.spec.Base == "" && k.spec.Input != nil && k.spec.Effects != nil &&
		k.spec.Trust != nil {
		return nil // a reserved name whose calls are refused
	}
	if !ok {
		known := make([]string, 0, 16)
		for _, b := range builtin.All() {
			known = append(known, b.Name)
		}
		field := "base"
		if k.spec.Base == "" {
			field = "name"
		}
		return k.fail(field, "is %q: built-in tool not found%s (built-in tools: %s)", clip.Message(name),
			nearest(name, known),
			strings.Join(known, ", "))
	}
	k.out.builtin = t
	return nil
}

var validEffect = regexp.MustCompile(`^(calls|reads|writes|spawns)\([a-z]+\)$`)

func (k *toolCompiler) limits() error {
	if t := k.spec.Trust; t != nil && (*t < tool.TrustNone || *t > tool.TrustMax) {
		return k.fail("trust", "is %d: must be from %d to %d", *t, tool.TrustNone, tool.TrustMax)
	}
	for i, e := range k.spec.Effects {
		if !validEffect.MatchString(string(e)) {
			return k.fail(fmt.Sprintf("effects[%d]", i),
				"is %q: use calls(…), reads(…), writes(…) or spawns(…)",
				clip.Message(string(e)))
		}
	}
	if r := k.spec.Rate; r != nil && (r.MaxCalls <= 0 || r.WindowMS <= 0) {
		return k.fail("rate", "must have max_calls and window_ms over 0")
	}
	return nil
}

func (k *toolCompiler) schema() error {
	raw := k.spec.Input
	if raw == nil {
		if k.spec.Arguments == "" {
			return nil // the built-in tool validates its input
		}
		raw = k.out.builtin.Input
	}
	s, err := newSchema(raw)
	if err != nil {
		return k.fail("input", "%s", err)
	}
	k.out.schema = s
	if k.spec.Output == nil {
		return nil
	}
	if _, err := newSchema(k.spec.Output); err != nil {
		return k.fail("output", "%s", err)
	}
	return nil
}

func (k *toolCompiler) expressions() error {
	for _, x := range []struct {
		field, source string
		vars          []string
		to            **expr.Expr
	}{
		{"bases", k.spec.Bases, inputNames, &k.out.bases},
		{"arguments", k.spec.Arguments, inputNames, &k.out.arguments},
		{"result", k.spec.Result, endNames, &k.out.result},
	} {
		if x.source == "" {
			continue
		}
		compiled, err := expr.Compile(x.source, x.vars...)
		if err != nil {
			return k.fail(x.field, "%s", withoutClass(err))
		}
		*x.to = compiled
	}
	return nil
}

func (k *toolCompiler) texts() error {
	if k.spec.Text != "" {
		t, err := newTemplate(k.spec.Text, maxText, textNames...)
		if err != nil {
			return k.fail("text", "%s", err)
		}
		k.out.text = t
	}
	for _, key := range slices.Sorted(maps.Keys(k.spec.Errors)) {
		if err := k.error(key, k.spec.Errors[key]); err != nil {
			return err
		}
	}
	return nil
}

func (k *toolCompiler) error(key string, e Error) error {
	at := join("errors", key)
	ending, class, found := strings.Cut(key, ":")
	classes, ok := endings[ending]
	if !ok {
		return k.fail(at, "is an unknown ending%s", nearest(ending, slices.Sorted(maps.Keys(endings))))
	}
	if found && !slices.Contains(classes, class) {
		return k.fail(at, "is an unknown class of %s%s (classes: %s)", ending, nearest(class, classes),
			strings.Join(classes, ", "))
	}
	if e.Type == "" {
		return k.fail(at, "must have a type, by which clients distinguish errors")
	}
	out := &toolError{kind: e.Type}
	if e.Message != "" {
		names := textNames
		if ending == EndingInvalid {
			names = []string{"field", "message"}
		}
		t, err := newTemplate(e.Message, maxMessage, names...)
		if err != nil {
			return k.fail(at+".message", "%s", err)
		}
		out.message = t
	}
	k.out.errors[key] = out
	return nil
}

func (k *toolCompiler) policy() error {
	if k.spec.Policy == nil {
		return nil
	}
	var err error
	k.out.policy, err = compilePolicy(*k.spec.Policy, func(field, reason string) error {
		return k.fail(joinField("policy", field), "%s", reason)
	})
	return err
}

// withoutClass returns the text of an error without its class, which the FileError adds.
func withoutClass(err error) string {
	return strings.TrimSuffix(err.Error(), ": invalid argument")
}
