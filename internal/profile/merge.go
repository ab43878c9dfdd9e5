package profile

import "fmt"

// origin is where a part of a merged profile comes from: a file, and the path of the part in it.
type origin struct {
	src  *source
	path string
}

// draft is a profile before compilation: its JSON value, with the origins of parts by their path in
// the merged profile. The first origin has priority.
type draft struct {
	body    tree
	origins map[string][]origin
	// files lists the file of the profile, followed by those it extends.
	files    []*source
	warnings []string
}

func newDraft(body tree, src *source) *draft {
	d := &draft{body: body, origins: map[string][]origin{}, files: []*source{src}}
	for _, key := range []string{"tools", "approvals"} {
		items, _ := body[key].([]any)
		for i := range items {
			at := fmt.Sprintf("%s[%d]", key, i)
			d.origins[at] = []origin{{src, at}}
		}
	}
	rules, _ := subtree(body, "policy")["rules"].([]any)
	for i := range rules {
		at := fmt.Sprintf("policy.rules[%d]", i)
		d.origins[at] = []origin{{src, at}}
	}
	return d
}

// fail returns an error about a field of the part at path, located in the file that defines it.
func (d *draft) fail(path, field, format string, args ...any) error {
	from := d.origins[path]
	for _, o := range from {
		at := join(o.path, field)
		if field == "" {
			at = o.path
		}
		if _, ok := o.src.lines[at]; ok {
			return o.src.fail(at, format, args...)
		}
	}
	if len(from) > 0 {
		return from[0].src.fail(joinField(from[0].path, field), format, args...)
	}
	at := joinField(path, field)
	for _, src := range d.files {
		if _, ok := src.lines[at]; ok {
			return src.fail(at, format, args...)
		}
	}
	return d.files[0].fail(at, format, args...)
}

func joinField(path, field string) string {
	if field == "" {
		return path
	}
	return join(path, field)
}

func subtree(t tree, key string) tree {
	v, _ := t[key].(tree)
	return v
}

func items(t tree, key string) []any {
	v, _ := t[key].([]any)
	return v
}

// extend merges child over parent, without changing either:
//   - Tools with the same name are merged by field; caps, errors and policy are merged in turn.
//     New tools come last.
//   - Of a policy, deny, forbid and rules are concatenated, a rule with the same id is replaced,
//     and allow and argv are replaced. A child with another match replaces the policy; only the
//     messages are merged.
//   - Approvals of the child come first, because the first match decides. One with the same id
//     replaces that of the parent.
//   - Paths are merged by directory. All else is replaced.
func extend(child, parent *draft) *draft {
	d := &draft{
		body: tree{}, origins: map[string][]origin{},
		files:    append(append([]*source{}, child.files...), parent.files...),
		warnings: append(append([]string{}, parent.warnings...), child.warnings...),
	}
	over(d.body, parent.body, child.body)
	if p, c := subtree(parent.body, "paths"), subtree(child.body, "paths"); p != nil && c != nil {
		merged := tree{}
		over(merged, p, c)
		d.body["paths"] = merged
	}
	d.policy(child, parent)
	d.tools(child, parent)
	approvals := make([]any, 0, 8)
	seen := map[any]bool{nil: false}
	for _, from := range []*draft{child, parent} {
		for i, a := range items(from.body, "approvals") {
			if from == parent && seen[ruleID(a)] {
				continue
			}
			seen[ruleID(a)] = ruleID(a) != nil
			d.origins[fmt.Sprintf("approvals[%d]", len(approvals))] = from.origins[fmt.Sprintf("approvals[%d]", i)]
			approvals = append(approvals, a)
		}
	}
	if len(approvals) > 0 {
		d.body["approvals"] = approvals
	}
	return d
}

// over copies the entries of the trees to out; later trees win.
func over(out tree, from ...tree) {
	for _, t := range from {
		for k, v := range t {
			out[k] = v
		}
	}
}

func (d *draft) policy(child, parent *draft) {
	p, c := subtree(parent.body, "policy"), subtree(child.body, "policy")
	if p == nil && c == nil {
		return
	}
	merged, rules := mergePolicy(p, c)
	d.body["policy"] = merged
	for i, r := range rules {
		from := parent
		if r.child {
			from = child
		}
		d.origins[fmt.Sprintf("policy.rules[%d]", i)] = from.origins[fmt.Sprintf("policy.rules[%d]", r.index)]
	}
}

// ruleAt returns where a rule of a merged policy comes from.
type ruleAt struct {
	child bool
	index int
}

func mergePolicy(p, c tree) (tree, []ruleAt) {
	out := tree{}
	if m, ok := c["match"]; ok && m != match(p) {
		over(out, c)
		p = tree{"messages": p["messages"]}
	} else {
		over(out, p, c)
	}
	if a, b := subtree(p, "messages"), subtree(c, "messages"); a != nil {
		merged := tree{}
		over(merged, a, b)
		out["messages"] = merged
	}
	for _, key := range []string{"deny", "forbid"} {
		if joined := append(append([]any{}, items(p, key)...), items(c, key)...); len(joined) > 0 {
			out[key] = joined
		}
	}
	var rules []any
	var from []ruleAt
	index := map[any]int{}
	for i, r := range items(p, "rules") {
		index[ruleID(r)] = i
		rules, from = append(rules, r), append(from, ruleAt{false, i})
	}
	for i, r := range items(c, "rules") {
		if at, ok := index[ruleID(r)]; ok && ruleID(r) != nil {
			rules[at], from[at] = r, ruleAt{true, i}
			continue
		}
		rules, from = append(rules, r), append(from, ruleAt{true, i})
	}
	if len(rules) > 0 {
		out["rules"] = rules
	}
	return out, from
}

func match(policy tree) any {
	if m, ok := policy["match"]; ok {
		return m
	}
	return "parsed"
}

func ruleID(r any) any {
	t, _ := r.(tree)
	return t["id"]
}

func (d *draft) tools(child, parent *draft) {
	var tools []any
	index := map[any]int{}
	for i, t := range items(parent.body, "tools") {
		index[nameOf(t)] = len(tools)
		d.origins[toolPath(len(tools))] = parent.origins[toolPath(i)]
		tools = append(tools, t)
	}
	for i, t := range items(child.body, "tools") {
		from := child.origins[toolPath(i)]
		at, ok := index[nameOf(t)]
		if !ok {
			d.origins[toolPath(len(tools))] = from
			tools = append(tools, t)
			continue
		}
		d.origins[toolPath(at)] = append(append([]origin{}, from...), d.origins[toolPath(at)]...)
		tools[at] = mergeTool(tools[at].(tree), t.(tree))
	}
	if len(tools) > 0 {
		d.body["tools"] = tools
	}
}

func toolPath(i int) string { return fmt.Sprintf("tools[%d]", i) }

func nameOf(t any) any {
	m, _ := t.(tree)
	return m["name"]
}

func mergeTool(p, c tree) tree {
	out := tree{}
	over(out, p, c)
	for _, key := range []string{"caps", "errors"} {
		if a, b := subtree(p, key), subtree(c, key); a != nil && b != nil {
			merged := tree{}
			over(merged, a, b)
			for _, part := range []string{"output", "web"} {
				if x, y := subtree(a, part), subtree(b, part); key == "caps" && x != nil && y != nil {
					both := tree{}
					over(both, x, y)
					merged[part] = both
				}
			}
			out[key] = merged
		}
	}
	if a, b := subtree(p, "policy"), subtree(c, "policy"); a != nil && b != nil {
		out["policy"], _ = mergePolicy(a, b)
	}
	return out
}
