package policy

import (
	"strconv"

	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
)

// Line decides on a command line for a policy with Rules.Argv: texts that are
// forbidden first, then the line is split as a POSIX shell quotes and nothing
// more, then the argument vector is looked at. It returns what to run, which is
// nil unless the verdict allows it or asks.
func (p *Policy) Line(command string) ([]string, Verdict) {
	r := run{p: p, src: command}
	if !p.text(&r, command) {
		return nil, r.verdict()
	}
	words, err := argv.Split(command)
	switch {
	case err != nil:
		r.report(finding{action: Deny, class: ClassSyntax, reason: err.Error(), at: span{0, len(command)}})
	case len(words) == 0 || words[0] == "":
		r.report(finding{action: Deny, class: ClassEmpty, reason: "there is no command"})
	default:
		at := span{0, len(command)}
		fields := make([]field, len(words))
		for i, w := range words {
			fields[i] = field{text: literal(w), at: at}
		}
		if p.rules.Match != Literal && (!p.allow.empty() || !p.deny.empty() || len(p.list) > 0) {
			r.guard(func() { r.exec(newScope(), &call{words: fields, at: at}) })
		}
		r.checkArgv(words, fields)
	}
	v := r.verdict()
	if v.Action == Deny {
		return nil, v
	}
	return words, v
}

// checkArgv asks Rules.Argv.
func (r *run) checkArgv(words []string, fields []field) {
	if r.p.rules.Argv == nil {
		return
	}
	no := r.p.rules.Argv.Check(words)
	if no == nil {
		return
	}
	f := finding{action: Deny, class: no.Class, program: no.Program, reason: no.Message, at: span{0, len(r.src)}}
	if no.Index < len(fields) {
		f.at = fields[no.Index].at
	}
	f.rule = no.Class + ":" + no.Program
	if no.Class == ClassAllowList {
		f.allowed = r.p.rules.Argv.Names()
	}
	if no.Index > 0 && no.Index < len(words) {
		f.text = words[no.Index]
		f.reason = no.Message + " (argument " + strconv.Itoa(no.Index) + ")"
	}
	r.report(f)
}

// Second is the decision that the sandbox makes again on an argument vector,
// right before it runs: Rules.Argv, nil if there is none.
func (p *Policy) Second() *argv.Rules { return p.rules.Argv }
