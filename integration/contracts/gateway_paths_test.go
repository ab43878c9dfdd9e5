//go:build integration

package contracts

import (
	"strconv"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

func itoa(n int) string { return strconv.Itoa(n) }

// links is how the workspace's links to places outside are made again.
const links = "ln -sfn /etc/passwd link-file; ln -sfn chain-2 chain-1; ln -sfn ~/out/new link-new"

func (g *gateway) paths() table {
	me := func(s *harness.Server) agent { return operator(s, "gateway", "bash") }
	return table{
		"outside": func(t *testing.T, s *harness.Server, l line) {
			path := quoted(t, l)
			before := shell(t, me(s), links+"; md5sum /etc/passwd ~/out/*")
			link := path == "link-file" || path == "chain-1" || path == "link-new"
			eachOperation(t, me(s), path, func(operation string, r v1.ToolResult) {
				switch {
				case link && operation == "stat":
					gives(t, r, fields{"isSymbolicLink": true})
				case link && operation == "delete":
					gives(t, r, fields{"deleted": true})
					shell(t, me(s), "test ! -L "+path)
				case r.Ending != "failed" || r.Error == nil || r.Error.Type != "AccessDenied" || strings.Contains(string(r.Output)+r.Text, "root:"):
					t.Errorf("%s %s: %s %+v %s", operation, path, r.Ending, r.Error, r.Output)
				}
			})
			if after := shell(t, me(s), links+"; md5sum /etc/passwd ~/out/*"); after != before {
				t.Errorf("outside it was\n%s and is\n%s", before, after)
			}
		},
		"outside-nul": func(t *testing.T, s *harness.Server, _ line) {
			eachOperation(t, me(s), "in/file\x00.txt", func(operation string, r v1.ToolResult) {
				like(t, r, "failed", "ToolError", "NUL")
			})
		},
		"outside-long": func(t *testing.T, s *harness.Server, _ line) {
			eachOperation(t, me(s), strings.Repeat("x/", 2100), func(operation string, r v1.ToolResult) {
				like(t, r, "failed", "ToolError", "4096")
			})
		},
		"hard-link": func(t *testing.T, s *harness.Server, _ line) {
			r := me(s).call(t, program("sh", "-c", "ln /etc/passwd hard-1; ln ~/out/file hard-2; ln /proc/self/root/etc/passwd hard-3; ls hard-*"))
			if out := outputOf(t, r); out["stdout"] != "" {
				t.Errorf("%s", r.Output)
			}
		},
		"race": func(t *testing.T, s *harness.Server, _ line) {
			racing(t, s, me(s), func() {
				read := map[string]int{}
				for i := range 150 {
					r := file(t, me(s), "read", "race/file")
					text := r.Ending
					if r.Ending == "ok" {
						text = outputOf(t, r)["content"].(string)
					}
					read[text]++
					file(t, me(s), "write", "race/evil-"+itoa(i), "content", "evil")
					file(t, me(s), "delete", "race/evil-"+itoa(i))
					if r := file(t, me(s), "list", "race"); strings.Contains(string(r.Output), "theirs") {
						t.Errorf("%s", r.Output)
					}
				}
				if read["mine\n"]+read["failed"] != 150 {
					t.Errorf("%v", read)
				}
			})
		},
		"dirs-many": func(t *testing.T, s *harness.Server, _ line) {
			for _, path := range []string{"/workspace/in/many", "in/many", "/tmp/many", "../tmp/many"} {
				gives(t, file(t, me(s).as("dirs"), "write", path, "content", path), fields{"bytesWritten": len(path)})
				gives(t, file(t, me(s).as("dirs"), "read", path), fields{"content": path})
				gives(t, file(t, me(s).as("dirs"), "delete", path), fields{"deleted": true})
			}
		},
		"dirs-only": func(t *testing.T, s *harness.Server, _ line) {
			for _, path := range []string{"other/file", "/workspace", "/workspace/in/../other/file", "in2", "/tmpx", "/etc/passwd"} {
				eachOperation(t, me(s).as("dirs"), path, func(operation string, r v1.ToolResult) {
					like(t, r, "failed", "AccessDenied", "is not allowed: use one below /workspace/in, /tmp")
				})
			}
			gives(t, file(t, me(s), "read", "other/file"), fields{"content": "other\n"})
		},
		"dirs-link": func(t *testing.T, s *harness.Server, _ line) {
			for _, path := range []string{"in/link-other/file", "in/link-other/new"} {
				eachOperation(t, me(s).as("dirs"), path, func(operation string, r v1.ToolResult) {
					like(t, r, "failed", "AccessDenied", "")
				})
			}
			for _, operation := range []string{"read", "write"} {
				like(t, file(t, me(s).as("dirs"), operation, "in/link-other-file", "content", "x"), "failed", "AccessDenied", "")
			}
			like(t, file(t, me(s).as("dirs"), "list", "in/link-other"), "failed", "AccessDenied", "")
			gives(t, file(t, me(s), "read", "other/file"), fields{"content": "other\n"})
		},
		"follow-yes": func(t *testing.T, s *harness.Server, _ line) {
			for _, path := range []string{"link-in", "link-dir/file", "in/link-other/../../in/file"} {
				gives(t, file(t, me(s), "read", path), fields{"content": "inside\n"})
			}
			if r := file(t, me(s), "list", "link-dir"); r.Ending != "ok" {
				t.Errorf("%+v", r)
			}
		},
		"follow-no": func(t *testing.T, s *harness.Server, l line) {
			path := map[string]string{"file": "link-in", "folder": "link-dir/file"}[lastOf(l)]
			eachOperation(t, me(s).as("plain"), path, func(operation string, r v1.ToolResult) {
				like(t, r, "failed", "AccessDenied", "link")
			})
			shell(t, me(s), "test -L link-in && test -L link-dir && grep -q inside in/file")
		},
		"follow-no-rest": func(t *testing.T, s *harness.Server, _ line) {
			plain := me(s).as("plain")
			gives(t, file(t, plain, "write", "in/plain", "content", "x"), fields{"bytesWritten": 1})
			gives(t, file(t, plain, "read", "in/plain"), fields{"content": "x"})
			gives(t, file(t, plain, "stat", "in"), fields{"isDirectory": true})
			gives(t, file(t, plain, "delete", "in/plain"), fields{"deleted": true})
		},
	}
}
