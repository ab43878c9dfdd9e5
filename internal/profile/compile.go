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
	"github.com/sandbox-orchestrator/orchestrator/internal/expr"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// Compiled is a profile that is ready for calls.
type Compiled struct {
	// Profile is what it was made of, with what it extends.
	Profile Profile
	// Source is BuiltIn, or the file.
	Source string

	tools  map[string]*CompiledTool
	byForm map[string]*CompiledTool // by the name with underscores for dots
	order  []*CompiledTool

	policy    *policy.Policy
	approvals *approval.Rules
}

// Policy decides on commands of tools that have none of their own.
func (c *Compiled) Policy() *policy.Policy { return c.policy }

// Approvals are the profile's rules on calls.
func (c *Compiled) Approvals() *approval.Rules { return c.approvals }

// Names of variables in expressions, and of fields in templates.
var (
	inputNames = []string{"input", "call"}
	endNames   = []string{"r", "input", "call", "end"}
	textNames  = append(slices.Clone(endNames), "result")
)

// The endings and classes that Tool.Errors may speak of.
var endings = map[string][]string{
	"ok": nil, "started": nil, "exited": nil, "signalled": nil, "timeout": nil, "cancelled": nil,
	"oom": nil, "pids": nil, "disk": nil, "output_limit": nil, "sandbox_lost": nil,
	EndingFailed: {ClassNotFound, ClassPermission, ClassInvalid, ClassLimit, ClassExists, ClassNetwork},
	EndingPolicy: {
		ClassNever, "rule", "allowlist", "denylist", "forbidden", "unknown", "syntax", "empty", ClassLimit, "path", "argument", "default",
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
	c := &Compiled{Profile: p, Source: d.files[0].file, tools: map[string]*CompiledTool{}, byForm: map[string]*CompiledTool{}}
	if d.files[0].builtin {
		c.Source = BuiltIn
	}
	if err := checkSettings(d, &p); err != nil {
		return nil, err
	}
	if len(p.Tools) == 0 {
		return nil, d.fail("", "tools", "has no tools: name some, or extend a profile that has")
	}
	for i, t := range p.Tools {
		form := mcpName(t.Name)
		if other, ok := c.byForm[form]; ok {
			return nil, d.fail(toolPath(i), "name", "is %q, which is %q already (dots are underscores over MCP)", t.Name, other.spec.Name)
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
	if err := c.rules(d); err != nil {
		return nil, err
	}
	return c, nil
}

// compilePolicy compiles a command policy; fail makes an error of what is wrong
// with one of its fields.
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

// policyPart splits the place in a policy into what a file may have brought by
// itself, and a field of it.
func policyPart(field string) (part, rest string) {
	if !strings.HasPrefix(field, "rules[") {
		return "", joinField("policy", field)
	}
	part, rest, _ = strings.Cut(field, "]")
	return "policy." + part + "]", strings.TrimPrefix(rest, ".")
}

// rules compiles the approvals. One for a tool that is not here would never
// hold: that is a slip, and if it denies a dangerous one.
func (c *Compiled) rules(d *draft) error {
	for i, r := range c.Profile.Approvals {
		if !slices.ContainsFunc(c.order, func(t *CompiledTool) bool { ok, err := path.Match(r.Tool, t.spec.Name); return ok || err != nil }) {
			names := make([]string, len(c.order))
			for i, t := range c.order {
				names[i] = t.spec.Name
			}
			return d.fail(fmt.Sprintf("approvals[%d]", i), "tool", "is %q, which is no tool here%s (tools: %s)", shorten(r.Tool), nearest(r.Tool, names), strings.Join(names, ", "))
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
	if err := oneOf(d, "", "raise_trust", string(p.RaiseTrust), "", "deny", "prompt"); err != nil {
		return err
	}
	if err := oneOf(d, "", "workspace", p.Workspace, "", WorkspaceNone, WorkspaceCaller, WorkspaceJob); err != nil {
		return err
	}
	if err := oneOf(d, "", "network", p.Network, "", NetworkNone, NetworkBridge); err != nil {
		return err
	}
	for _, from := range slices.Sorted(maps.Keys(p.Paths)) {
		to := p.Paths[from]
		for _, dir := range []string{from, to} {
			if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" || strings.ContainsRune(dir, 0) {
				return d.fail("", join("paths", from), "is %q to %q: both must be absolute, clean, and not the root", shorten(from), shorten(to))
			}
		}
	}
	return nil
}

// oneOf sees to a field that takes one of some words; the first may be "".
func oneOf(d *draft, at, field, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	allowed = slices.DeleteFunc(allowed, func(s string) bool { return s == "" })
	return d.fail(at, field, "is %q: use %s%s", shorten(value), strings.Join(allowed, ", "), nearest(value, allowed))
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
	for _, step := range []func() error{k.base, k.level, k.schema, k.expressions, k.texts, k.policy, k.caps} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return k.out, nil
}

func (k *toolCompiler) base() error {
	if k.spec.Bases != "" {
		if k.spec.Base != "" {
			return k.fail("bases", "and base are both set: use one of them")
		}
		if k.spec.Input == nil || k.spec.Arguments == "" || k.spec.Effects == nil || k.spec.Trust == nil {
			return k.fail("bases", "needs input, arguments, effects and trust beside it: it has no built-in tool of its own")
		}
		return nil
	}
	name := k.spec.Base
	if name == "" {
		name = k.spec.Name
	}
	t, ok := tool.Get(name)
	if !ok && k.spec.Disabled && k.spec.Base == "" && k.spec.Input != nil && k.spec.Effects != nil && k.spec.Trust != nil {
		return nil // a name that is kept and refused
	}
	if !ok {
		known := make([]string, 0, 16)
		for _, b := range tool.Builtins() {
			known = append(known, b.Name)
		}
		field := "base"
		if k.spec.Base == "" {
			field = "name"
		}
		return k.fail(field, "is %q, which is no built-in tool%s (built in: %s)", shorten(name), nearest(name, known), strings.Join(known, ", "))
	}
	k.out.builtin = t
	return nil
}

var validEffect = regexp.MustCompile(`^(calls|reads|writes|spawns)\([a-z]+\)$`)

func (k *toolCompiler) level() error {
	if t := k.spec.Trust; t != nil && (*t < tool.TrustNone || *t > tool.TrustMax) {
		return k.fail("trust", "is %d: from %d to %d", *t, tool.TrustNone, tool.TrustMax)
	}
	for i, e := range k.spec.Effects {
		if !validEffect.MatchString(string(e)) {
			return k.fail(fmt.Sprintf("effects[%d]", i), "is %q: use calls(…), reads(…), writes(…) or spawns(…)", shorten(string(e)))
		}
	}
	if r := k.spec.Rate; r != nil && (r.MaxCalls <= 0 || r.WindowMS <= 0) {
		return k.fail("rate", "needs max_calls and window_ms over 0")
	}
	return nil
}

func (k *toolCompiler) schema() error {
	raw := k.spec.Input
	if raw == nil {
		if k.spec.Arguments == "" {
			return nil // the built-in tool checks what it takes
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
		return k.fail(at, "is no ending%s", nearest(ending, slices.Sorted(maps.Keys(endings))))
	}
	if found && !slices.Contains(classes, class) {
		return k.fail(at, "is no class of %s%s (classes: %s)", ending, nearest(class, classes), strings.Join(classes, ", "))
	}
	if e.Type == "" {
		return k.fail(at, "needs a type: it is what clients tell errors by")
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

// withoutClass leaves the class off an error's words: the FileError has one.
func withoutClass(err error) string {
	return strings.TrimSuffix(err.Error(), ": invalid argument")
}
