//go:build integration

package contracts

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandbox-orchestrator/orchestrator/client"
)

// universalTime returns a test that a command of the profile with this timeout in seconds (nil:
// none) has a timeout of has milliseconds.
func universalTime(profile string, given any, has int) func(t *testing.T, a agent) {
	return func(t *testing.T, a agent) {
		in := fields{"command": "ls"}
		if given != nil {
			in["timeout"] = given
		}
		assertFields(t, a.as(profile).call(t, in), fields{"timeout_ms": has})
	}
}

func testUniversalGiven(t *testing.T, a agent) {
	universalTime("seen", 50, 50_000)(t, a)
	universalTime("seen", 7.25, 7_250)(t, a)
	universalTime("seen", 600, 600_000)(t, a)
}

func testUniversalAgentCap(t *testing.T, a agent) {
	universalTime("patient", 1200, 1_200_000)(t, a)
	universalTime("patient", 7200, 1_800_000)(t, a)
	universalTime("patient", nil, 120_000)(t, a)
	universalTime("writer-seen", 601, 600_000)(t, a)
	a = a.as("hasty")
	for _, in := range []fields{{"command": "sleep 600"}, {"command": "sleep 600", "timeout": 60}} {
		assertFields(t, a.call(t, in), fields{"timed_out": true})
	}
}

func testUniversalTimeout(t *testing.T, a agent) {
	r := a.call(t, fields{"command": "echo before; sleep 600", "timeout": 1})
	assertEnding(t, r, "timeout", "Timeout", "Command timed out after 1s")
	assertFields(t, r, fields{"timed_out": true, "exit_code": -1})
	if !strings.HasPrefix(r.Text, "Command timed out after 1s") {
		t.Errorf("text %q, want the timeout", r.Text)
	}
	assertFields(t, a.run(t, "exit 124"), fields{"timed_out": false, "exit_code": 124})
}

func testUniversalTimeKill(t *testing.T, a agent) {
	assertTimeoutKills(t, func(command string, seconds int) (agent, fields) {
		return a, fields{"command": command, "timeout": seconds}
	})
}

func testUniversalTimeWrong(t *testing.T, a agent) {
	for _, timeout := range []any{0, -1, "10", true} {
		_, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, fields{"command": "ls", "timeout": timeout}),
			client.CallOptions{})
		if err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("timeout %v: %v, want an error that names it", timeout, err)
		}
	}
}

func testUniversalWhole(t *testing.T, a agent) {
	assertFields(t, a.run(t, "head -c 50000 /dev/zero | tr '\\0' x"),
		fields{"stdout": strings.Repeat("x", 50_000), "truncated": false})
}

func testUniversalTail(t *testing.T, a agent) {
	r := a.run(t, "printf head; head -c 50000 /dev/zero | tr '\\0' x")
	assertFields(t, r,
		fields{"stdout": "... (4 of 50004 characters truncated)\n" + strings.Repeat("x", 50_000), "truncated": true})
	if caps := toolNamed(t, a.s, "universal", "run_command").Caps; caps.Output != 50_000 ||
		caps.OutputUnit != "characters" {
		t.Errorf("caps of run_command = %+v, want 50000 characters", caps)
	}
}

func testUniversalStreams(t *testing.T, a agent) {
	r := a.run(t, "head -c 50000 /dev/zero | tr '\\0' x; (printf head; head -c 50000 /dev/zero | tr '\\0' y) >&2")
	assertFields(t, r, fields{
		"stdout":    strings.Repeat("x", 50_000),
		"stderr":    "... (4 of 50004 characters truncated)\n" + strings.Repeat("y", 50_000),
		"truncated": true,
	})
}

func testUniversalCharacters(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, `python3 -c "print('x' + 'é€' * 25000, end='')"`))
	if got := out["stdout"].(string); !strings.HasSuffix(got, strings.Repeat("é€", 25_000)) ||
		strings.Contains(got, "x") || out["truncated"] != true {
		t.Errorf("stdout of %d characters, truncated %v; want the last 50,000, truncated",
			utf8.RuneCountInString(got), out["truncated"])
	}
}

func testUniversalRest(t *testing.T, a agent) {
	r := a.run(t, "printf head; head -c 50000 /dev/zero | tr '\\0' x")
	if o, err := a.client.Tools.Output(callContext(t), r.Rest, client.OutputRequest{Limit: 4}); err != nil ||
		o.Data != "head" {
		t.Errorf("output from the beginning, by %q: %+v, %v; want head", r.Rest, o, err)
	}
}
