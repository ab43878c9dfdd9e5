//go:build integration

package contracts

import (
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

const writersPrograms = "biber, cat, find, grep, head, latexmk, ls, pandoc, pdflatex, sort, tail, wc"

func universalAllow(t *testing.T, a agent, name string) {
	a = a.as("writer")
	for _, command := range []string{name + " --version", "/usr/bin/" + name + " --version", "ls | " + name + " --version"} {
		ends(t, a.run(t, command), "exited", "", "")
	}
}

func universalOnly(t *testing.T, a agent) {
	a = a.as("writer")
	for _, name := range []string{"python3", "git", "awk", "sed", "rm", "cp", "tee", "curl", "sh"} {
		notAllowed(t, name, name, a.run(t, name+" --version"))
	}
}

func universalMessage(t *testing.T, a agent) {
	ends(t, a.as("writer").run(t, "git log"), "policy_denied", "CommandNotAllowed", "Command not allowed: 'git'. Allowed: "+writersPrograms)
}

func universalWithin(t *testing.T, a agent) {
	a = a.as("writer")
	for command, program := range map[string]string{
		"ls | tee x": "tee", "ls; git log": "git", "ls && rm x": "rm", "find . -exec rm {} +": "rm", "ls | xargs rm": "rm", "cat <(git log)": "git", "ls $(git log)": "git", "env git log": "git",
	} {
		if r := a.run(t, command); r.Ending != "policy_denied" || r.Error.Type != "CommandNotAllowed" {
			t.Errorf("%s runs %s: %+v", command, program, r)
		}
	}
	gives(t, a.run(t, "find /etc -maxdepth 1 -name passwd | grep -c passwd"), fields{"stdout": "1\n"})
}

func universalNone(t *testing.T, a agent) {
	for _, command := range []string{"git --version", "python3 --version", "sed --version", "no-such-program-here"} {
		ends(t, a.run(t, command), "exited", "", "")
	}
}

func universalGlobal(t *testing.T, a agent) {
	a = a.as("greedy")
	notAllowed(t, "sudo", "sudo", a.run(t, "sudo ls"))
	notAllowed(t, "chmod", "chmod", a.run(t, "chmod u+x x"))
	ends(t, a.run(t, "ls"), "exited", "", "")
}

func universalMerged(t *testing.T, a agent) {
	a = a.as("researcher")
	notAllowed(t, "curl", "curl", a.run(t, "env curl x"))
	notAllowed(t, "sudo", "sudo", a.run(t, "sudo ls"))
	ends(t, a.run(t, "python3 --version"), "exited", "", "")
}

func universalDenyEmpty(t *testing.T, a agent) { // the writer's is
	ends(t, a.as("writer").run(t, "kill 1"), "policy_denied", "CommandNotAllowed", "Command not allowed: 'kill' is blocked")
}

func universalContainer(t *testing.T, a agent, what string) {
	switch what {
	case "root":
		gives(t, a.run(t, "id -u; grep -c '^CapEff:[[:space:]]*0*$' /proc/self/status; grep NoNewPrivs /proc/self/status"), fields{"stdout": "1000\n1\nNoNewPrivs:\t1\n"})
	case "alone":
		// The test's own process, by a pattern that does not find itself.
		gives(t, a.run(t, "cat /proc/[0-9]*/cmdline | grep -c 'contracts[.]test'"), fields{"stdout": "0\n"})
		gives(t, a.run(t, "cat /proc/1/environ"), fields{"stdout": "", "exit_code": 1})
	case "network":
		gives(t, a.run(t, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), fields{"stdout": "lo\n"})
		if r := a.run(t, "curl -sS -m 5 http://1.1.1.1"); outputOf(t, r)["exit_code"] == 0.0 {
			t.Errorf("%+v", r)
		}
	default:
		t.Fatal(what)
	}
}

func universalLimit(t *testing.T, a agent, what string) {
	switch what {
	case "fork-bomb":
		mark := word()
		a.call(t, fields{"command": "bomb() { bomb | bomb & }; bomb; : " + mark + "; sleep 1", "timeout": 1})
		gone(t, mark)
	case "loop":
		gives(t, a.call(t, fields{"command": "while :; do :; done", "timeout": 0.2}), fields{"timed_out": true})
	case "memory":
		ends(t, a.run(t, "head -c 1000000000 /dev/zero | tail"), "oom", "ResourceLimit", "Command ran out of memory")
	case "output":
		out := outputOf(t, a.run(t, "head -c 20000000 /dev/zero | tr '\\0' x"))
		if n := len(out["stdout"].(string)); n > 50_100 || out["truncated"] != true {
			t.Errorf("%d characters, truncated: %v", n, out["truncated"])
		}
	default:
		t.Fatal(what)
	}
	gives(t, a.run(t, "echo hello"), fields{"stdout": "hello\n"})
}

func universalTrace(t *testing.T, s *harness.Server, _ line) {
	a := universal(s)
	for command, ending := range map[string]string{"echo hello": "exited", "exit 3": "exited", "sudo ls": "policy_denied"} {
		if got := traced(t, s, a.run(t, command)); got.Ending != ending {
			t.Errorf("%s: %+v", command, got)
		}
	}
	tracesInvalid(t, a, fields{"command": 3}, "command")
}
