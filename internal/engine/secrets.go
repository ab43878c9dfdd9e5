package engine

import (
	"bytes"
	"encoding/json"
	"regexp"

	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
)

// secretName matches names of variables that hold secrets.
var secretName = regexp.MustCompile(`(?i)(secret|token|passw|passphrase|credential|private|api_?key|access_?key|auth|cookie|session|_key$|^key$|_pat$|(^|_)pw$|(^|_)pass$|dsn|database_url|connection_?string)`)

// hide keeps the values of a lease's secrets out of what is recorded and
// logged, as long as the lease lives. The values are not stored: after a
// restart they are known by their patterns alone.
func (e *Engine) hide(l *scheduler.Lease, env map[string]string) {
	g := e.opts.Governance
	if g == nil {
		return
	}
	show, any := g.hideNow(env)
	if !any {
		return
	}
	e.work.Go(func() { // Serve waits for it
		select {
		case <-l.Gone():
		case <-e.closing:
		}
		show()
	})
}

// variables are those that a tool's input sets for its command.
func variables(input json.RawMessage) map[string]string {
	var in struct {
		Env map[string]string `json:"env"`
	}
	if !bytes.Contains(input, []byte(`"env"`)) || json.Unmarshal(input, &in) != nil {
		return nil // what is no input is refused later
	}
	return in.Env
}

// hideNow hides the values of secrets until show is called; any says whether
// there are some.
func (g *Governance) hideNow(env map[string]string) (show func(), any bool) {
	var hidden []string
	for name, value := range env {
		if secretName.MatchString(name) {
			g.Redactor.Add(value)
			hidden = append(hidden, value)
		}
	}
	return func() {
		for _, v := range hidden {
			g.Redactor.Remove(v)
		}
	}, len(hidden) > 0
}
