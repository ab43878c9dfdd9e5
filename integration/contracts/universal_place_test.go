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

func universalInJob(t *testing.T, s *harness.Server, _ line) {
	a := universal(s).newJob(t)
	r := a.run(t, "echo hello > file")
	list, err := s.Client.Workspaces(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list, func(w v1.Workspace) bool {
		return w.Name == "job_"+a.job && slices.Contains(w.Sandboxes, r.SandboxID)
	}) {
		t.Errorf("%s is not with the workspace of its job: %+v", r.SandboxID, list)
	}
	if got := traced(t, s, r); got.Workspace != "job_"+a.job {
		t.Errorf("%+v", got)
	}
}

func universalApart(t *testing.T, a agent) {
	one, two := a.newJob(t), a.newJob(t)
	one.run(t, "echo secret > file")
	gives(t, two.run(t, "ls; ls .."), fields{"stdout": outputOf(t, a.newJob(t).run(t, "ls; ls .."))["stdout"].(string)})
	gives(t, two.run(t, "cat file /workspace/../job_"+one.job+"/file"), fields{"exit_code": 1, "stdout": ""})
}

func universalKeeps(t *testing.T, a agent) {
	a = a.newJob(t)
	first := a.run(t, "echo kept > file")
	a.endJob(t)
	second := a.run(t, "cat file")
	gives(t, second, fields{"stdout": "kept\n"})
	if first.SandboxID == second.SandboxID {
		t.Error("it is the same sandbox")
	}
}

func universalNoJob(t *testing.T, a agent) {
	a.job, a.session = "", ""
	gives(t, a.run(t, "pwd; touch left; ls"), fields{"stdout": "/workspace\nleft\n"})
	gives(t, a.run(t, "ls"), fields{"stdout": ""})
}

func universalUUID(t *testing.T, a agent) {
	for _, job := range []string{"x", "../x", "job_" + universalJob, universalJob + "/..", strings.ToUpper(universalJob) + "0"} {
		a.job = job
		if _, err := a.client.CallTool(soon(t), a.tool, a.request(t, fields{"command": "ls"}), client.CallOptions{}); err == nil || !strings.Contains(err.Error(), "job") {
			t.Errorf("%q: %v", job, err)
		}
	}
}

func universalCaller(t *testing.T, s *harness.Server, _ line) {
	a := universal(s).newJob(t)
	a.run(t, "echo secret > file")
	b := holder(t, s, v1.TokenRequest{Caller: "other-agent", Profile: "universal"}, "run_command")
	b.job = a.job
	defer b.endJob(t)
	gives(t, b.run(t, "cat file"), fields{"exit_code": 1, "stdout": ""})
}

func universalOutside(t *testing.T, a agent) {
	a = a.newJob(t)
	gives(t, a.run(t, "touch /tmp/left ~/left && ls /tmp/left"), fields{"exit_code": 0})
	a.endJob(t)
	gives(t, a.run(t, "ls /tmp/left ~/left"), fields{"stdout": "", "exit_code": 2})
}

func universalDir(t *testing.T, a agent, what string) {
	a.run(t, "mkdir -p sub/dir; ln -sfn / out; ln -sfn ../../tmp dots; ln -sfn sub/dir in; mkdir -p /tmp/etc")
	if what == "none" {
		gives(t, a.run(t, "pwd"), fields{"stdout": "/workspace\n"})
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
		t.Fatalf("there is no folder for %s", what)
	}
	r := a.call(t, fields{"command": "pwd -P", "working_dir": c.dir})
	switch {
	case c.where != "":
		gives(t, r, fields{"stdout": c.where + "\n", "exit_code": 0})
	case r.Ending != "failed" || r.Error == nil || r.Error.Type != "Failed" || !strings.Contains(r.Text, fmt.Sprint(c.dir)) || strings.Contains(r.Text, a.s.Dir()):
		t.Errorf("%+v", r)
	}
}
