//go:build integration

package contracts

import (
	"strconv"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// itoa returns a number in decimal.
func itoa(n int) string { return strconv.Itoa(n) }

// links is a command that creates the workspace's symlinks to places outside again.
const links = "ln -sfn /etc/passwd link-file; ln -sfn chain-2 chain-1; ln -sfn ~/out/new link-new"

// paths returns the tests of paths that leave the workspace or the allowed directories.
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
					assertFields(t, r, fields{"isSymbolicLink": true})
				case link && operation == "delete":
					assertFields(t, r, fields{"deleted": true})
					shell(t, me(s), "test ! -L "+path)
				case r.Ending != "failed" || r.Error == nil || r.Error.Type != "AccessDenied" ||
					strings.Contains(string(r.Output)+r.Text, "root:"):
					t.Errorf("%s %s: ending %s, error %+v, output %s; want AccessDenied", operation, path, r.Ending, r.Error, r.Output)
				}
			})
			if after := shell(t, me(s), links+"; md5sum /etc/passwd ~/out/*"); after != before {
				t.Errorf("the files outside are\n%s\nwant them unchanged:\n%s", after, before)
			}
		},
		"outside-nul": func(t *testing.T, s *harness.Server, _ line) {
			eachOperation(t, me(s), "in/file\x00.txt", func(operation string, r v1.ToolResult) {
				assertError(t, r, "failed", "ToolError", "NUL")
			})
		},
		"outside-long": func(t *testing.T, s *harness.Server, _ line) {
			eachOperation(t, me(s), strings.Repeat("x/", 2100), func(operation string, r v1.ToolResult) {
				assertError(t, r, "failed", "ToolError", "4096")
			})
		},
		"hard-link": func(t *testing.T, s *harness.Server, _ line) {
			r := me(s).call(t,
				program("sh", "-c", "ln /etc/passwd hard-1; ln ~/out/file hard-2; ln /proc/self/root/etc/passwd hard-3; ls hard-*"))
			if out := outputOf(t, r); out["stdout"] != "" {
				t.Errorf("ln of files outside = %s, want no hard link", r.Output)
			}
		},
		"race": func(t *testing.T, s *harness.Server, _ line) {
			whileSwapping(t, s, me(s), func() {
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
						t.Errorf("list during the race = %s, want no file from outside", r.Output)
					}
				}
				if read["mine\n"]+read["failed"] != 150 {
					t.Errorf("results of 150 reads = %v, want only the own file or failed", read)
				}
			})
		},
		"dirs-many": func(t *testing.T, s *harness.Server, _ line) {
			for _, path := range []string{"/workspace/in/many", "in/many", "/tmp/many", "../tmp/many"} {
				assertFields(t, file(t, me(s).as("dirs"), "write", path, "content", path), fields{"bytesWritten": len(path)})
				assertFields(t, file(t, me(s).as("dirs"), "read", path), fields{"content": path})
				assertFields(t, file(t, me(s).as("dirs"), "delete", path), fields{"deleted": true})
			}
		},
		"dirs-only": func(t *testing.T, s *harness.Server, _ line) {
			for _, path := range []string{
				"other/file", "/workspace", "/workspace/in/../other/file", "in2", "/tmpx", "/etc/passwd",
			} {
				eachOperation(t, me(s).as("dirs"), path, func(operation string, r v1.ToolResult) {
					assertError(t, r, "failed", "AccessDenied", "is not allowed: use one below /workspace/in, /tmp")
				})
			}
			assertFields(t, file(t, me(s), "read", "other/file"), fields{"content": "other\n"})
		},
		"dirs-link": func(t *testing.T, s *harness.Server, _ line) {
			for _, path := range []string{"in/link-other/file", "in/link-other/new"} {
				eachOperation(t, me(s).as("dirs"), path, func(operation string, r v1.ToolResult) {
					assertError(t, r, "failed", "AccessDenied", "")
				})
			}
			for _, operation := range []string{"read", "write"} {
				assertError(t, file(t, me(s).as("dirs"), operation, "in/link-other-file", "content", "x"), "failed", "AccessDenied",
					"")
			}
			assertError(t, file(t, me(s).as("dirs"), "list", "in/link-other"), "failed", "AccessDenied", "")
			assertFields(t, file(t, me(s), "read", "other/file"), fields{"content": "other\n"})
		},
		"follow-yes": func(t *testing.T, s *harness.Server, _ line) {
			for _, path := range []string{"link-in", "link-dir/file", "in/link-other/../../in/file"} {
				assertFields(t, file(t, me(s), "read", path), fields{"content": "inside\n"})
			}
			if r := file(t, me(s), "list", "link-dir"); r.Ending != "ok" {
				t.Errorf("list through a symlink: %+v, want ok", r)
			}
		},
		"follow-no": func(t *testing.T, s *harness.Server, l line) {
			path := map[string]string{"file": "link-in", "folder": "link-dir/file"}[lastOf(l)]
			eachOperation(t, me(s).as("plain"), path, func(operation string, r v1.ToolResult) {
				assertError(t, r, "failed", "AccessDenied", "link")
			})
			shell(t, me(s), "test -L link-in && test -L link-dir && grep -q inside in/file")
		},
		"follow-no-rest": func(t *testing.T, s *harness.Server, _ line) {
			plain := me(s).as("plain")
			assertFields(t, file(t, plain, "write", "in/plain", "content", "x"), fields{"bytesWritten": 1})
			assertFields(t, file(t, plain, "read", "in/plain"), fields{"content": "x"})
			assertFields(t, file(t, plain, "stat", "in"), fields{"isDirectory": true})
			assertFields(t, file(t, plain, "delete", "in/plain"), fields{"deleted": true})
		},
	}
}
