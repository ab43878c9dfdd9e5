package governed

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

const inputSchema = `{"type":"object","additionalProperties":false,"properties":{
	"command":{"type":"string"}, "timeout_ms":{"type":"integer"}, "ratio":{"type":["null","number"]}, "background":{"type":"boolean"},
	"argv":{"type":"array","items":{"type":"string"}}, "ids":{"type":["null","array"],"items":{"type":"integer"}},
	"env":{"type":"object"}, "anything":true, "either":{"type":["integer","string"]}}}`

func TestPairsInputUsesSchemaTypes(t *testing.T) {
	tool := v1.Tool{Name: "t", Input: json.RawMessage(inputSchema)}
	for _, c := range []struct {
		pairs string
		want  string // for an error, part of its text
	}{
		{"command=ls=-l timeout_ms=5", `{"command":"ls=-l","timeout_ms":5}`},
		{"command=5 background=true ratio=0.5", `{"background":true,"command":"5","ratio":0.5}`},
		{"command=", `{"command":""}`},
		{"argv=git argv=status", `{"argv":["git","status"]}`},
		{`argv=["a","b"]`, `{"argv":["a","b"]}`},
		{"ids=1 ids=2", `{"ids":[1,2]}`},
		{`env={"A":"x"}`, `{"env":{"A":"x"}}`},
		{"anything=x either=7", `{"anything":"x","either":7}`},
		{"either=seven", `{"either":"seven"}`},
		{`command:=17 new:={"a":[1]}`, `{"command":17,"new":{"a":[1]}}`},
		{"command", `"command" is not KEY=VALUE`},
		{"=x", "is not KEY=VALUE"},
		{"comand=x", `t takes no "comand": it takes anything, argv, background, command`},
		{"timeout_ms=soon", `timeout_ms is "soon" and must be of type integer`},
		{"timeout_ms=5 timeout_ms=6", "timeout_ms is given more than once"},
		{"background=yes", "must be of type boolean"},
		{"ids=x", "must be of type integer"},
		{"env=x", "must be of type object"},
		{"command:=x", "is not JSON"},
	} {
		got, err := pairsInput(&cobra.Command{Use: "call"}, tool, strings.Fields(c.pairs))
		if err != nil {
			if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", c.pairs, err, c.want)
			}
			continue
		}
		if string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.pairs, got, c.want)
		}
	}
}

func TestAuditFilterTimes(t *testing.T) {
	cmd := &cobra.Command{Use: "ls"}
	f, err := auditOptions{since: "90m", until: "2026-01-02T15:04:05Z"}.auditFilter(cmd)
	if ago := time.Since(f.Since); err != nil || ago < 90*time.Minute || ago > 100*time.Minute || f.Until.Year() != 2026 {
		t.Errorf("auditFilter = %+v, %v; want since 90 minutes ago, until 2026", f, err)
	}
	for _, bad := range []string{"yesterday", "-5m", "2026-01-02"} {
		if _, err := (auditOptions{since: bad}).auditFilter(cmd); cli.ExitCode(err) != cli.ExitUsage ||
			!strings.Contains(err.Error(), "--since is") {
			t.Errorf("auditFilter since %s = %v, want a usage error about --since", bad, err)
		}
	}
}
