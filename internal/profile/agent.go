package profile

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
)

// Universal is the profile that agents' configurations of the universal system extend.
const Universal = "universal"

// universalTool is the tool of that system.
const universalTool = "run_command"

// agentDoc is the configuration of one agent of the universal system.
type agentDoc struct {
	// Tools are the names of the agent's tools by category.
	Tools map[string][]string `json:"tools"`
	Shell struct {
		Allow *[]string `json:"allow"`
		Deny  []string  `json:"deny"`
	} `json:"shell"`
}

// readAgent is like read for an agent's configuration of the universal system. It becomes a profile
// that extends Universal. Tools that the orchestrator does not have become warnings. An unknown
// setting is a *FileError.
func readAgent(src *source, name string, n *node) (*draft, string, error) {
	if !validName.MatchString(name) {
		return nil, "", src.fail("", "is named %q: use up to 64 of a-z, 0-9, - and _, starting with a letter or digit",
			clip.Message(name))
	}
	v, err := check(src, "", n, reflect.TypeFor[agentDoc]())
	if err != nil {
		return nil, "", err
	}
	var doc agentDoc
	if err := convert(v, &doc); err != nil {
		return nil, "", src.fail("", "cannot be decoded: %s", clip.Message(err.Error()))
	}
	p := Profile{Name: name, Extends: Universal, Title: name, Policy: policy.Rules{Deny: doc.Shell.Deny}}
	if allow := doc.Shell.Allow; allow != nil {
		if len(*allow) == 0 {
			return nil, "", src.fail("shell.allow", "is empty: name a program, or remove it to allow all")
		}
		p.Policy.Allow = *allow
	}
	for at, programs := range map[string][]string{"shell.allow": p.Policy.Allow, "shell.deny": p.Policy.Deny} {
		if i := slices.Index(programs, ""); i >= 0 {
			return nil, "", src.fail(fmt.Sprintf("%s[%d]", at, i), "is empty: name a program")
		}
	}
	origins := map[string][]origin{}
	warnings := doc.unknownTools(src)
	if !doc.hasTool() {
		p.Tools = []Tool{{Name: universalTool, Disabled: true}}
		origins[toolPath(0)] = []origin{{src, "tools"}}
	}
	var body tree
	if err := convert(p, &body); err != nil {
		return nil, "", src.fail("", "cannot be decoded: %s", err)
	}
	return &draft{body: body, origins: origins, files: []*source{src}, warnings: warnings}, name, nil
}

func (d *agentDoc) hasTool() bool {
	for _, names := range d.Tools {
		if slices.Contains(names, universalTool) {
			return true
		}
	}
	return false
}

// unknownTools returns a warning for each category with tools that do not exist here.
func (d *agentDoc) unknownTools(src *source) []string {
	var out []string
	for _, category := range slices.Sorted(maps.Keys(d.Tools)) {
		names := slices.DeleteFunc(slices.Clone(d.Tools[category]), func(n string) bool { return n == universalTool })
		if len(names) == 0 {
			continue
		}
		at := join("tools", category)
		w := &FileError{File: src.file, Line: src.line(at), Path: at,
			Reason: "has no effect for " + clip.Message(strings.Join(names, ", ")) + ": the only tool is " + universalTool}
		out = append(out, w.Error())
	}
	return out
}

// convert decodes the JSON of from into to.
func convert(from, to any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}
