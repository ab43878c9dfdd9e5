package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestDescriptionIsBuiltOnce(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e})
	first, err := s.description()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.description(); err != nil || &again[0] != &first[0] {
		t.Errorf("second description: built again or error %v, want the first", err)
	}
}

// described is the part of the description that tests read.
type described struct {
	Paths map[string]map[string]struct {
		OperationID string `json:"operationId"`
		Parameters  []struct {
			Name, In string
			Schema   struct{ Type string }
		}
		RequestBody *struct{ Content map[string]any }
		Responses   map[string]struct{ Content map[string]any }
	}
	Components struct {
		Schemas map[string]struct {
			Required   []string
			Properties map[string]struct{ Enum []string }
		}
	}
}

func describedBy(t *testing.T) described {
	t.Helper()
	srv, _ := newServer(t, "")
	var d described
	ask(t, srv, http.MethodGet, "/openapi.json", "").into(t, &d)
	return d
}

func TestOperationsHaveUniqueIDs(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	camel := regexp.MustCompile(`^[a-z][a-zA-Z]+$`)
	for path, methods := range describedBy(t).Paths {
		for method, op := range methods {
			if other := seen[op.OperationID]; other != "" || !camel.MatchString(op.OperationID) {
				t.Errorf("operationId of %s %s = %q, want a name of its own (also of %s)", method, path, op.OperationID, other)
			}
			seen[op.OperationID] = method + " " + path
		}
	}
	for _, id := range []string{"createSandbox", "exec", "unpinImage", "mcpPost", "shellCompat"} {
		if seen[id] == "" {
			t.Errorf("operation %s is not described, want it among %d", id, len(seen))
		}
	}
}

// Each parameter that is not text must be refused as text by its route.
func TestParameterTypesAreChecked(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	tried := 0
	for path, methods := range describedBy(t).Paths {
		if path == mcpPath {
			continue // it has errors of its own
		}
		for method, op := range methods {
			for _, p := range op.Parameters {
				if p.In != "query" || p.Schema.Type == "string" {
					continue
				}
				at := regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "1")
				if strings.HasSuffix(path, "/pty") { // it checks the handshake first
					continue
				}
				got := ask(t, srv, strings.ToUpper(method), at+"?"+p.Name+"=text", "")
				var problem v1.Problem
				if json.Unmarshal([]byte(got.body), &problem) != nil || got.status != 400 || problem.Field != p.Name {
					t.Errorf("%s %s with %s=text = %d %s, want 400 for a parameter of type %s",
						method, path, p.Name, got.status, got.body, p.Schema.Type)
				}
				tried++
			}
		}
	}
	if tried < 30 {
		t.Errorf("%d parameters were tried, want those of all routes", tried)
	}
}

func TestSchemasFollowTypes(t *testing.T) {
	t.Parallel()
	d := describedBy(t)
	exec := d.Components.Schemas["ExecResult"]
	var endings []string
	for _, e := range []runtime.Ending{
		runtime.Exited, runtime.Signalled, runtime.Timeout, runtime.Cancelled, runtime.OOM, runtime.Pids, runtime.Disk,
		runtime.OutputLimit, runtime.SandboxLost,
	} {
		endings = append(endings, string(e))
	}
	if got := exec.Properties["ending"].Enum; !reflect.DeepEqual(got, endings) {
		t.Errorf("enum of ExecResult.ending = %v, want %v", got, endings)
	}
	codes := d.Components.Schemas["Problem"].Properties["code"].Enum
	for _, c := range classes {
		if !strings.Contains(" "+strings.Join(codes, " ")+" ", " "+c.code+" ") {
			t.Errorf("enum of Problem.code = %v, want %s in it", codes, c.code)
		}
	}
	run := d.Paths["/v1/run"]["post"]
	for _, form := range []string{formJSON, formEvents, formRaw, formFrames} {
		if _, ok := run.Responses["200"].Content[form]; !ok {
			t.Errorf("answers of POST /v1/run = %v, want form %s", run.Responses["200"].Content, form)
		}
	}
	if put := d.Paths["/v1/sandboxes/{id}/files"]["put"]; put.RequestBody == nil || put.RequestBody.Content[formRaw] == nil {
		t.Errorf("body of PUT files = %+v, want %s", put.RequestBody, formRaw)
	}
	if _, ok := d.Paths["/v1/sandboxes"]["post"].Responses["201"]; !ok {
		t.Errorf("answers of POST /v1/sandboxes = %v, want 201", d.Paths["/v1/sandboxes"]["post"].Responses)
	}
}
