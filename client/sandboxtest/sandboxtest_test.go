package sandboxtest

import (
	"strings"
	"testing"
)

func TestMissingRequirementIsReported(t *testing.T) {
	t.Setenv("ORCHESTRATOR_ADDRESS", "unix:"+t.TempDir()+"/nobody.sock")
	if _, err := find(t.Context()); err == nil || !strings.Contains(err.Error(), "ORCHESTRATOR_ADDRESS") {
		t.Errorf("find without a server = %v, want an error with ORCHESTRATOR_ADDRESS", err)
	}
	t.Setenv("ORCHESTRATOR_ADDRESS", "nonsense")
	if _, err := find(t.Context()); err == nil || !strings.Contains(err.Error(), "ORCHESTRATOR_ADDRESS") {
		t.Errorf("find with an invalid address = %v, want an error with ORCHESTRATOR_ADDRESS", err)
	}
	t.Setenv("ORCHESTRATOR_BIN", "/nowhere/orchestrator")
	t.Setenv("ORCHESTRATOR_IMAGE_ARCHIVE", "")
	t.Setenv("ORCHESTRATOR_CACHE", t.TempDir())
	if _, _, err := needs(); err == nil || !strings.Contains(err.Error(), "none can be started") {
		t.Errorf("needs without an image = %v, want an error with \"none can be started\"", err)
	}
}

func TestJoinOptions(t *testing.T) {
	o := join([]Options{{Template: "a", Env: map[string]string{"A": "1", "B": "1"}}, {Skip: true, Class: "gvisor"},
		{Env: map[string]string{"B": "2"}}})
	if o.Template != "a" || o.Class != "gvisor" || !o.Skip || o.Env["A"] != "1" || o.Env["B"] != "2" {
		t.Errorf("join = %+v, want template a, class gvisor, skip, A=1 and B=2", o)
	}
}

func TestServerEnvironmentIsFiltered(t *testing.T) {
	t.Setenv("ORCHESTRATOR_STATE_DIR", "/somebody/elses")
	t.Setenv("ORCHESTRATOR_OCI_RUNTIME", "/usr/bin/crun")
	env := strings.Join(environment(), "\n")
	if strings.Contains(env, "elses") || !strings.Contains(env, "crun") {
		t.Errorf("environment = %s, want ORCHESTRATOR_OCI_RUNTIME and no ORCHESTRATOR_STATE_DIR", env)
	}
}
