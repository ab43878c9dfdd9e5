package profile

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/expr"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
)

// Gateway is the profile that configurations of the gateway system extend.
const Gateway = "gateway"

// hasToolMap reports whether a file is a configuration of the gateway system or of an agent of the
// universal system: its tools are a map, those of a profile a list.
func hasToolMap(n *node) bool {
	tools := n.get("tools")
	return tools != nil && tools.kind == object
}

// readGateway is like read for a configuration of the gateway system.
func readGateway(src *source, name string, n *node) (*draft, string, error) {
	p, origins, err := fromGateway(src, name, n)
	if err != nil {
		return nil, "", err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return nil, "", src.fail("", "cannot be decoded: %s", err)
	}
	var body tree
	if err := json.Unmarshal(b, &body); err != nil {
		return nil, "", src.fail("", "cannot be decoded: %s", err)
	}
	return &draft{body: body, origins: origins, files: []*source{src}, warnings: p.Warnings}, name, nil
}

// fromGateway converts a configuration file of the gateway system to a profile that extends
// Gateway. Paths name directories in the sandbox; the first one is the workspace. Settings that
// cannot be applied become warnings of the profile. An unknown setting is a *FileError.
func fromGateway(src *source, name string, n *node) (Profile, map[string][]origin, error) {
	if !validName.MatchString(name) {
		return Profile{}, nil,
			src.fail("", "is named %q: use up to 64 of a-z, 0-9, - and _, starting with a letter or digit",
				clip.Message(name))
	}
	v, err := check(src, "", n, reflect.TypeFor[gatewayDoc]())
	if err != nil {
		return Profile{}, nil, err
	}
	g := &gatewayReader{src: src, tools: map[string]*Tool{},
		p: Profile{Name: name, Extends: Gateway, Title: name, Paths: map[string]string{}}}
	b, err := json.Marshal(v)
	if err != nil {
		return Profile{}, nil, src.fail("", "cannot be decoded: %s", err)
	}
	if err := json.Unmarshal(b, &g.doc); err != nil {
		return Profile{}, nil, src.fail("", "cannot be decoded: %s", clip.Message(err.Error()))
	}
	for _, step := range []func() error{g.bash, g.files, g.http, g.browser, g.sandbox, g.approvals, g.policy} {
		if err := step(); err != nil {
			return Profile{}, nil, err
		}
	}
	return g.profile(), g.origins(), nil
}

// gatewayTools are the tools of the gateway system, in order.
var gatewayTools = []string{"bash", "filesystem", "http", "browser"}

// gatewayReader converts a gatewayDoc to a Profile.
type gatewayReader struct {
	src   *source
	doc   gatewayDoc
	p     Profile
	tools map[string]*Tool
}

func (g *gatewayReader) tool(name string) *Tool {
	t := g.tools[name]
	if t == nil {
		t = &Tool{Name: name}
		g.tools[name] = t
	}
	return t
}

func (g *gatewayReader) warn(at, format string, args ...any) {
	w := &FileError{File: g.src.file, Line: g.src.line(at), Path: at, Reason: fmt.Sprintf(format, args...)}
	g.p.Warnings = append(g.p.Warnings, w.Error())
}

func (g *gatewayReader) enabled(name string, on *bool) {
	if on != nil && !*on {
		g.tool(name).Disabled = true
	}
}

func (g *gatewayReader) positive(at string, n float64) error {
	if _, ok := g.src.lines[at]; ok && n <= 0 {
		return g.src.fail(at, "is %v: must be more than 0, or remove it", n)
	}
	return nil
}

func (g *gatewayReader) bash() error {
	b, at := &g.doc.Tools.Bash, "tools.bash"
	g.enabled("bash", b.Enabled)
	if b.AllowedCommands != nil {
		if len(*b.AllowedCommands) == 0 {
			return g.src.fail(at+".allowedCommands",
				"is empty and allows no command: remove it to allow all, or set enabled to false")
		}
		g.p.Policy.Allow = *b.AllowedCommands
	}
	g.p.Policy.Deny = b.DeniedCommands
	if b.AllowedCommands != nil || len(b.DeniedCommands) > 0 {
		g.p.Policy.Unknown = policy.Deny // an unknown program could bypass the list
	}
	if err := g.positive(at+".timeoutMs", float64(b.TimeoutMS)); err != nil {
		return err
	}
	if err := g.positive(at+".maxOutputBytes", float64(b.MaxOutputBytes)); err != nil {
		return err
	}
	c := &g.tool("bash").Caps
	c.TimeoutMS, c.Output.Limit = b.TimeoutMS, b.MaxOutputBytes
	return g.directories(at, b.AllowedDirectories, c)
}

func (g *gatewayReader) files() error {
	f, at := &g.doc.Tools.Filesystem, "tools.filesystem"
	g.enabled("filesystem", f.Enabled)
	if err := g.positive(at+".maxFileSize", float64(f.MaxFileSize)); err != nil {
		return err
	}
	c := &g.tool("filesystem").Caps
	c.ReadOnly, c.MaxFile = f.ReadOnly, f.MaxFileSize
	c.NoFollow = f.FollowSymlinks != nil && !*f.FollowSymlinks
	return g.directories(at, f.AllowedDirectories, c)
}

const (
	workspaceDir = "/workspace"
	tempDir      = "/tmp"
)

// directories converts the allowed directories. The first one that is not part of every sandbox
// becomes the path of the workspace.
func (g *gatewayReader) directories(at string, dirs *[]string, c *Caps) error {
	if dirs == nil {
		return nil
	}
	at += ".allowedDirectories"
	if len(*dirs) == 0 {
		return g.src.fail(at, "is empty and allows no directory: remove it, or set enabled to false")
	}
	for i, dir := range *dirs {
		here := fmt.Sprintf("%s[%d]", at, i)
		clean := path.Clean(dir)
		if !path.IsAbs(dir) || clean == "/" || strings.ContainsRune(dir, 0) {
			return g.src.fail(here, "is %q: use an absolute path below the root", clip.Message(dir))
		}
		c.Dirs = append(c.Dirs, clean)
		switch {
		case isWithin(clean, workspaceDir), isWithin(clean, tempDir), g.known(clean):
		case len(g.p.Paths) == 0:
			g.p.Paths[clean] = workspaceDir
		default:
			g.warn(here, "%s does not exist in sandboxes: only the first directory is mapped to the workspace", clean)
		}
	}
	return nil
}

func (g *gatewayReader) known(dir string) bool {
	for from := range g.p.Paths {
		if isWithin(dir, from) {
			return true
		}
	}
	return false
}

func isWithin(dir, of string) bool { return dir == of || strings.HasPrefix(dir, of+"/") }

func (g *gatewayReader) sandbox() error {
	s, at := &g.doc.Tools.Sandbox, "tools.sandbox"
	if s.Enabled != nil && !*s.Enabled {
		g.warn(at+".enabled", "is false, but every call runs in a sandbox")
	}
	if s.Image != "" {
		g.warn(at+".image", "%q is ignored: the template of the service sets the image", clip.Message(s.Image))
	}
	switch s.NetworkMode {
	case "", "none":
	case "bridge": // all public egress, still without a network interface
		g.p.Network = NetworkBridge
	default:
		return g.src.fail(at+".networkMode", "is %q: use none or bridge", clip.Message(s.NetworkMode))
	}
	if len(s.VolumeMounts) > 0 {
		g.warn(at+".volumeMounts", "are ignored: a call names its workspace, and host directories are never mounted")
	}
	if err := g.positive(at+".cpuLimit", s.CPULimit); err != nil {
		return err
	}
	memory, ok := memorySize(s.MemoryLimit)
	if !ok {
		return g.src.fail(at+".memoryLimit", "is %q: use a number with k, m or g, such as 512m",
			clip.Message(s.MemoryLimit))
	}
	c := &g.tool("bash").Caps
	c.MemoryBytes, c.CPUs = memory, s.CPULimit
	return nil
}

var memoryForm = regexp.MustCompile(`^([0-9]{1,12})([bkmg]?)b?$`)

func memorySize(s string) (int64, bool) {
	if s == "" {
		return 0, true
	}
	m := memoryForm.FindStringSubmatch(strings.ToLower(s))
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := map[string]int64{"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[m[2]]
	if err != nil || n == 0 || n > (1<<50)/unit {
		return 0, false
	}
	return n * unit, true
}

var fieldForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

func (g *gatewayReader) approvals() error {
	for i, r := range g.doc.Approval.Rules {
		at := fmt.Sprintf("approval.rules[%d]", i)
		if err := g.checkTool(at+".toolName", r.ToolName); err != nil {
			return err
		}
		if !slices.Contains([]string{"approve", "deny", "prompt", "budget"}, r.Action) {
			return g.src.fail(at+".action", "is %q: use approve, deny, prompt or budget%s", clip.Message(r.Action),
				nearest(r.Action, []string{"approve", "deny", "prompt", "budget"}))
		}
		out := approval.Rule{ID: fmt.Sprintf("approval-%d", i+1), Tool: r.ToolName, Action: approval.Action(r.Action),
			When: r.Condition}
		if r.Condition != "" {
			if _, err := expr.Compile(r.Condition, inputNames...); err != nil {
				return g.src.fail(at+".condition", "%s", withoutClass(err))
			}
		}
		if err := g.budget(at, r, &out); err != nil {
			return err
		}
		g.p.Approvals = append(g.p.Approvals, out)
	}
	return nil
}

func (g *gatewayReader) budget(at string, r gatewayRule, out *approval.Rule) error {
	if r.Action != "budget" {
		if r.BudgetLimit != nil || r.BudgetPeriod != "" || r.BudgetField != "" {
			return g.src.fail(at, "has a budget, but action %s: use action budget", r.Action)
		}
		return nil
	}
	if r.BudgetLimit == nil || *r.BudgetLimit <= 0 {
		return g.src.fail(at+".budgetLimit", "must be more than 0")
	}
	if r.BudgetPeriod == "" {
		r.BudgetPeriod = "daily"
	}
	periods := []string{"daily", "weekly", "monthly"}
	if !slices.Contains(periods, r.BudgetPeriod) {
		return g.src.fail(at+".budgetPeriod", "is %q: use daily, weekly or monthly%s", clip.Message(r.BudgetPeriod),
			nearest(r.BudgetPeriod, periods))
	}
	if r.BudgetField != "" {
		if !fieldForm.MatchString(r.BudgetField) {
			return g.src.fail(at+".budgetField", "is %q: must be a field name of the input", clip.Message(r.BudgetField))
		}
		// The gateway's own tools have no number in their input, so a call may carry the amount
		// instead.
		out.Amount = fmt.Sprintf("double(has(input.%s) ? input.%[1]s : call.amount)", r.BudgetField)
		if err := g.checkBudgetField(at, r); err != nil {
			return err
		}
	}
	out.Limit, out.Period = *r.BudgetLimit, r.BudgetPeriod
	return nil
}

// checkBudgetField warns if no tool of the rule has the field in its input.
func (g *gatewayReader) checkBudgetField(at string, r gatewayRule) error {
	text, err := data.ReadFile("data/" + Gateway + ".yaml")
	if err != nil {
		return err
	}
	n, err := parseFile(Gateway+".yaml", text)
	if err != nil {
		return err
	}
	for _, t := range n.get("tools").items {
		name, _ := t.get("name").value.(string)
		if ok, err := path.Match(r.ToolName, name); err != nil || !ok {
			continue
		}
		if in := t.get("input").get("properties"); in != nil && in.get(r.BudgetField) != nil {
			return nil
		}
	}
	g.warn(at+".budgetField", "is %s, which no input of tool %s has: each call must carry its amount (amount of the request)",
		r.BudgetField, r.ToolName)
	return nil
}

// named checks that name is a tool or a glob that matches one.
func (g *gatewayReader) checkTool(at, name string) error {
	for _, known := range gatewayTools {
		if ok, err := path.Match(name, known); err == nil && ok {
			return nil
		}
	}
	return g.src.fail(at, "is %q: tool not found%s (tools: %s)", clip.Message(name), nearest(name, gatewayTools),
		strings.Join(gatewayTools, ", "))
}

func (g *gatewayReader) policy() error {
	p := &g.doc.Policy
	for _, name := range slices.Sorted(maps.Keys(p.Enabled)) {
		on := p.Enabled[name]
		if err := g.checkTool("policy.enabled."+name, name); err != nil {
			return err
		}
		g.enabled(name, &on)
	}
	for _, name := range slices.Sorted(maps.Keys(p.RateLimits)) {
		r, at := p.RateLimits[name], join("policy.rateLimits", name)
		if err := g.checkTool(at, name); err != nil {
			return err
		}
		if r.MaxCalls <= 0 || r.WindowMS <= 0 {
			return g.src.fail(at, "must have maxCalls and windowMs over 0")
		}
		g.tool(name).Rate = &approval.Rate{MaxCalls: r.MaxCalls, WindowMS: r.WindowMS}
	}
	for _, name := range slices.Sorted(maps.Keys(p.ResourceLimits)) {
		l, at := p.ResourceLimits[name], join("policy.resourceLimits", name)
		if err := g.checkTool(at, name); err != nil {
			return err
		}
		if l.MaxDuration < 0 || l.MaxMemory < 0 || l.MaxCPU < 0 {
			return g.src.fail(at, "must not have a negative limit")
		}
		g.limit(&g.tool(name).Caps, l)
	}
	return nil
}

func (g *gatewayReader) limit(c *Caps, l gatewayLimit) {
	if l.MaxDuration > 0 {
		c.MaxTimeoutMS = l.MaxDuration
		if c.TimeoutMS == 0 || c.TimeoutMS > l.MaxDuration {
			c.TimeoutMS = l.MaxDuration
		}
	}
	if l.MaxMemory > 0 && (c.MemoryBytes == 0 || l.MaxMemory < c.MemoryBytes) {
		c.MemoryBytes = l.MaxMemory
	}
	if l.MaxCPU > 0 && (c.CPUs == 0 || l.MaxCPU < c.CPUs) {
		c.CPUs = l.MaxCPU
	}
}

func (g *gatewayReader) profile() Profile {
	for _, name := range gatewayTools {
		if t := g.tools[name]; t != nil {
			g.p.Tools = append(g.p.Tools, *t)
		}
	}
	return g.p
}

// origins returns the places of the profile's parts in the file.
func (g *gatewayReader) origins() map[string][]origin {
	out := map[string][]origin{}
	for i, t := range g.p.Tools {
		out[toolPath(i)] = []origin{{g.src, "tools." + t.Name}}
	}
	for i := range g.p.Approvals {
		out[fmt.Sprintf("approvals[%d]", i)] = []origin{{g.src, fmt.Sprintf("approval.rules[%d]", i)}}
	}
	return out
}
