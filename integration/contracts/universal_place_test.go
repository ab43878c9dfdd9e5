//go:build integration

package contracts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

func testUniversalInJob(t *testing.T, s *harness.Server, _ line) {
	a := universal(s).newJob(t)
	r := a.run(t, "echo hello > file")
	list, err := s.Client.Workspaces.List(callContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list, func(w v1.Workspace) bool {
		return w.Name == "job_"+a.job && slices.Contains(w.Sandboxes, r.SandboxID)
	}) {
		t.Errorf("workspaces = %+v, want job_%s with sandbox %s in them", list, a.job, r.SandboxID)
	}
	if got := closingRecord(t, s, r); got.Workspace != "job_"+a.job {
		t.Errorf("closing record %+v, want the job's workspace", got)
	}
}

func testUniversalApart(t *testing.T, a agent) {
	one, two := a.newJob(t), a.newJob(t)
	one.run(t, "echo secret > file")
	assertFields(t, two.run(t, "ls; ls .."),
		fields{"stdout": outputOf(t, a.newJob(t).run(t, "ls; ls .."))["stdout"].(string)})
	assertFields(t, two.run(t, "cat file /workspace/../job_"+one.job+"/file"), fields{"exit_code": 1, "stdout": ""})
}

func testUniversalKeeps(t *testing.T, a agent) {
	a = a.newJob(t)
	first := a.run(t, "echo kept > file")
	a.endJob(t)
	second := a.run(t, "cat file")
	assertFields(t, second, fields{"stdout": "kept\n"})
	if first.SandboxID == second.SandboxID {
		t.Error("the sandbox is the ended one, want a new one")
	}
}

func testUniversalNoJob(t *testing.T, a agent) {
	a.job, a.session = "", ""
	assertFields(t, a.run(t, "pwd; touch left; ls"), fields{"stdout": "/workspace\nleft\n"})
	assertFields(t, a.run(t, "ls"), fields{"stdout": ""})
}

func testUniversalUUID(t *testing.T, a agent) {
	for _, job := range []string{
		"x", "../x", "job_" + universalJob, universalJob + "/..", strings.ToUpper(universalJob) + "0",
	} {
		a.job = job
		if _, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, fields{"command": "ls"}),
			client.CallOptions{}); err == nil || !strings.Contains(err.Error(), "job") {
			t.Errorf("job %q: %v, want an error that names the job", job, err)
		}
	}
}

func testUniversalCaller(t *testing.T, s *harness.Server, _ line) {
	a := universal(s).newJob(t)
	a.run(t, "echo secret > file")
	b := newTokenAgent(t, s, v1.TokenRequest{Caller: "other-agent", Profile: "universal"}, "run_command")
	b.job = a.job
	defer b.endJob(t)
	assertFields(t, b.run(t, "cat file"), fields{"exit_code": 1, "stdout": ""})
}

func testUniversalOutside(t *testing.T, a agent) {
	a = a.newJob(t)
	assertFields(t, a.run(t, "touch /tmp/left ~/left && ls /tmp/left"), fields{"exit_code": 0})
	a.endJob(t)
	assertFields(t, a.run(t, "ls /tmp/left ~/left"), fields{"stdout": "", "exit_code": 2})
}

func testUniversalDir(t *testing.T, a agent, what string) {
	a.run(t, "mkdir -p sub/dir; ln -sfn / out; ln -sfn ../../tmp dots; ln -sfn sub/dir in; mkdir -p /tmp/etc")
	if what == "none" {
		assertFields(t, a.run(t, "pwd"), fields{"stdout": "/workspace\n"})
		return
	}
	c, ok := map[string]struct {
		dir   any
		where string // "": refused
	}{
		"null":            {nil, "/workspace"},
		"relative":        {"sub/dir", "/workspace/sub/dir"},
		"absolute-inside": {"/workspace/sub", "/workspace/sub"},
		"dots-inside":     {"sub/../sub/./dir/..", "/workspace/sub"},
		"dots":            {"..", ""},
		"dots-behind":     {"sub/../../tmp", ""},
		"absolute":        {"/etc", ""},
		"prefix":          {"/workspace-not", ""},
		"link":            {"out", ""},
		"link-behind":     {"out/etc", ""},
		"link-dots":       {"dots", ""},
		"link-inside":     {"in", "/workspace/sub/dir"},
		"missing":         {"nowhere", ""},
	}[what]
	if !ok {
		t.Fatalf("line %s has no directory, want one", what)
	}
	r := a.call(t, fields{"command": "pwd -P", "working_dir": c.dir})
	switch {
	case c.where != "":
		assertFields(t, r, fields{"stdout": c.where + "\n", "exit_code": 0})
	case r.Ending != "failed" || r.Error == nil || r.Error.Type != "Failed" ||
		!strings.Contains(r.Text, fmt.Sprint(c.dir)) || strings.Contains(r.Text, a.s.Dir()):
		t.Errorf("working_dir %v: %+v, want Failed with its name", c.dir, r)
	}
}
