//go:build integration

package contracts

import (
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

const writersPrograms = "biber, cat, find, grep, head, latexmk, ls, pandoc, pdflatex, sort, tail, wc"

func testUniversalAllow(t *testing.T, a agent, name string) {
	a = a.as("writer")
	for _, command := range []string{
		name + " --version", "/usr/bin/" + name + " --version", "ls | " + name + " --version",
	} {
		assertEnding(t, a.run(t, command), "exited", "", "")
	}
}

func testUniversalOnly(t *testing.T, a agent) {
	a = a.as("writer")
	for _, name := range []string{"python3", "git", "awk", "sed", "rm", "cp", "tee", "curl", "sh"} {
		assertNotAllowed(t, name, name, a.run(t, name+" --version"))
	}
}

func testUniversalMessage(t *testing.T, a agent) {
	assertEnding(t, a.as("writer").run(t, "git log"), "policy_denied", "CommandNotAllowed",
		"Command not allowed: 'git'. Allowed: "+writersPrograms)
}

func testUniversalWithin(t *testing.T, a agent) {
	a = a.as("writer")
	for command, program := range map[string]string{
		"ls | tee x":           "tee",
		"ls; git log":          "git",
		"ls && rm x":           "rm",
		"find . -exec rm {} +": "rm",
		"ls | xargs rm":        "rm",
		"cat <(git log)":       "git",
		"ls $(git log)":        "git",
		"env git log":          "git",
	} {
		if r := a.run(t, command); r.Ending != "policy_denied" || r.Error.Type != "CommandNotAllowed" {
			t.Errorf("%s runs %s: %+v, want CommandNotAllowed", command, program, r)
		}
	}
	assertFields(t, a.run(t, "find /etc -maxdepth 1 -name passwd | grep -c passwd"), fields{"stdout": "1\n"})
}

func testUniversalNone(t *testing.T, a agent) {
	for _, command := range []string{"git --version", "python3 --version", "sed --version", "no-such-program-here"} {
		assertEnding(t, a.run(t, command), "exited", "", "")
	}
}

func testUniversalGlobal(t *testing.T, a agent) {
	a = a.as("greedy")
	assertNotAllowed(t, "sudo", "sudo", a.run(t, "sudo ls"))
	assertNotAllowed(t, "chmod", "chmod", a.run(t, "chmod u+x x"))
	assertEnding(t, a.run(t, "ls"), "exited", "", "")
}

func testUniversalMerged(t *testing.T, a agent) {
	a = a.as("researcher")
	assertNotAllowed(t, "curl", "curl", a.run(t, "env curl x"))
	assertNotAllowed(t, "sudo", "sudo", a.run(t, "sudo ls"))
	assertEnding(t, a.run(t, "python3 --version"), "exited", "", "")
}

func testUniversalDenyEmpty(t *testing.T, a agent) { // the writer's deny list is empty
	assertEnding(t, a.as("writer").run(t, "kill 1"), "policy_denied", "CommandNotAllowed",
		"Command not allowed: 'kill' is blocked")
}

func testUniversalContainer(t *testing.T, a agent, what string) {
	switch what {
	case "root":
		rights := "id -u; grep -c '^CapEff:[[:space:]]*0*$' /proc/self/status; grep NoNewPrivs /proc/self/status"
		assertFields(t, a.run(t, rights), fields{"stdout": "1000\n1\nNoNewPrivs:\t1\n"})
	case "alone":
		// The test's own process, by a pattern that does not find itself.
		assertFields(t, a.run(t, "cat /proc/[0-9]*/cmdline | grep -c 'contracts[.]test'"), fields{"stdout": "0\n"})
		assertFields(t, a.run(t, "cat /proc/1/environ"), fields{"stdout": "", "exit_code": 1})
	case "network":
		assertFields(t, a.run(t, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), fields{"stdout": "lo\n"})
		if r := a.run(t, "curl -sS -m 5 http://1.1.1.1"); outputOf(t, r)["exit_code"] == 0.0 {
			t.Errorf("curl: %+v, want a failure", r)
		}
	default:
		t.Fatalf("line %s has no case, want one", what)
	}
}

func testUniversalLimit(t *testing.T, a agent, what string) {
	switch what {
	case "fork-bomb":
		mark := uniqueWord()
		a.call(t, fields{"command": "bomb() { bomb | bomb & }; bomb; : " + mark + "; sleep 1", "timeout": 1})
		awaitNoProcess(t, mark)
	case "loop":
		assertFields(t, a.call(t, fields{"command": "while :; do :; done", "timeout": 0.2}), fields{"timed_out": true})
	case "memory":
		assertEnding(t, a.run(t, "head -c 1000000000 /dev/zero | tail"), "oom", "ResourceLimit", "Command ran out of memory")
	case "output":
		out := outputOf(t, a.run(t, "head -c 20000000 /dev/zero | tr '\\0' x"))
		if n := len(out["stdout"].(string)); n > 50_100 || out["truncated"] != true {
			t.Errorf("stdout of %d characters, truncated %v; want at most 50,100, truncated", n, out["truncated"])
		}
	default:
		t.Fatalf("line %s has no case, want one", what)
	}
	assertFields(t, a.run(t, "echo hello"), fields{"stdout": "hello\n"})
}

func testUniversalTrace(t *testing.T, s *harness.Server, _ line) {
	a := universal(s)
	for command, ending := range map[string]string{
		"echo hello": "exited", "exit 3": "exited", "sudo ls": "policy_denied",
	} {
		if got := closingRecord(t, s, a.run(t, command)); got.Ending != ending {
			t.Errorf("%s: closing record %+v, want ending %s", command, got, ending)
		}
	}
	assertInvalidRecorded(t, a, fields{"command": 3}, "command")
}
