package policy

import (
	"strconv"

	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
)

// Line returns the verdict on a command line for a policy with Rules.Argv. It applies Rules.Forbid,
// splits the line by the quoting of a POSIX shell, and checks the argument vector. The words to run
// are nil if the verdict denies.
func (p *Policy) Line(command string) ([]string, Verdict) {
	r := evaluation{p: p, src: command}
	if !p.checkText(&r, command) {
		return nil, r.verdict()
	}
	words, err := argv.Split(command)
	switch {
	case err != nil:
		r.report(finding{action: Deny, class: ClassSyntax, reason: err.Error(), at: span{0, len(command)}})
	case len(words) == 0 || words[0] == "":
		r.report(finding{action: Deny, class: ClassEmpty, reason: "the command is empty"})
	default:
		at := span{0, len(command)}
		fields := make([]field, len(words))
		for i, w := range words {
			fields[i] = field{text: literal(w), at: at}
		}
		if p.rules.Match != Literal && (!p.allow.empty() || !p.deny.empty() || len(p.list) > 0) {
			r.guarded(func() { r.exec(newScope(), &call{words: fields, at: at}) })
		}
		r.checkArgv(words, fields)
	}
	v := r.verdict()
	if v.Action == Deny {
		return nil, v
	}
	return words, v
}

// checkArgv applies Rules.Argv.
func (r *evaluation) checkArgv(words []string, fields []field) {
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

// ArgvRules returns Rules.Argv, nil if unset. The sandbox applies them again right before the
// program runs.
func (p *Policy) ArgvRules() *argv.Rules { return p.rules.Argv }
