//go:build integration

package contracts

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// tenMiB is the size limit that the original system names.
const tenMiB = 10485760

// operations are all operations of filesystem, with their arguments besides the path.
var operations = []fields{
	{"operation": "read"}, {"operation": "list"}, {"operation": "stat"}, {"operation": "write",
		"content": "evil"}, {"operation": "delete"},
}

// file calls filesystem.
func file(t *testing.T, a agent, operation, path string, more ...string) v1.ToolResult {
	t.Helper()
	in := fields{"operation": operation, "path": path}
	for i := 0; i+1 < len(more); i += 2 {
		in[more[i]] = more[i+1]
	}
	return a.with("filesystem").call(t, in)
}

// eachOperation calls filesystem with each operation on one path.
func eachOperation(t *testing.T, a agent, path string, check func(operation string, r v1.ToolResult)) {
	t.Helper()
	for _, o := range operations {
		in := fields{"path": path}
		for k, v := range o {
			in[k] = v
		}
		check(o["operation"].(string), a.with("filesystem").call(t, in))
	}
}

// files returns the tests of the tool filesystem.
func (g *gateway) files() table {
	me := func(s *harness.Server) agent { return operator(s, "gateway", "bash") }
	return table{
		"read-text": func(t *testing.T, s *harness.Server, _ line) {
			for _, encoding := range []string{"utf-8", "utf8", "text"} {
				assertFields(t, file(t, me(s), "read", "in/file", "encoding", encoding),
					fields{"path": "in/file", "content": "inside\n", "size": 7})
			}
			assertFields(t, file(t, me(s), "read", "/workspace/in/../in/file"),
				fields{"content": "inside\n", "encoding": "utf-8"})
		},
		"read-base64": func(t *testing.T, s *harness.Server, _ line) {
			shell(t, me(s), `printf 'a\000\377b' > bytes`)
			assertFields(t, file(t, me(s), "read", "bytes", "encoding", "base64"),
				fields{"content": base64.StdEncoding.EncodeToString([]byte("a\x00\xffb")), "encoding": "base64", "size": 4})
		},
		"write-creates": func(t *testing.T, s *harness.Server, _ line) {
			shell(t, me(s), "rm -rf new")
			assertFields(t, file(t, me(s), "write", "new", "content", "é\n"), fields{"path": "new", "bytesWritten": 3})
			if got := shell(t, me(s), "cat new"); got != "é\n" {
				t.Errorf("the new file has %q, want é", got)
			}
		},
		"write-replaces": func(t *testing.T, s *harness.Server, _ line) {
			shell(t, me(s), "yes | head -c 1000 > long")
			assertFields(t, file(t, me(s), "write", "long", "content", ""), fields{"bytesWritten": 0})
			assertFields(t, file(t, me(s), "write", "long", "content", "short"), fields{"bytesWritten": 5})
			assertFields(t, file(t, me(s), "read", "long"), fields{"content": "short", "size": 5})
		},
		"write-base64": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, file(t, me(s), "write", "bytes", "content", "AP9hCg==", "encoding", "base64"),
				fields{"bytesWritten": 4})
			if got := shell(t, me(s), "od -An -tx1 bytes"); got != " 00 ff 61 0a\n" {
				t.Errorf("the new file has the bytes %q, want those of the base64 content", got)
			}
			assertInvalid(t, me(s).with("filesystem"),
				fields{"operation": "write", "path": "bytes", "content": "no!", "encoding": "base64"}, "content")
		},
		"write-content": func(t *testing.T, s *harness.Server, _ line) {
			assertInvalid(t, me(s).with("filesystem"), fields{"operation": "write", "path": "new"}, "content")
		},
		"list": func(t *testing.T, s *harness.Server, _ line) {
			out := outputOf(t, file(t, me(s), "list", "in"))
			seen := fields{}
			for _, e := range out["entries"].([]any) {
				e := e.(fields)
				seen[e["name"].(string)] = e["type"]
				if e["name"] == "file" && e["size"] != float64(7) {
					t.Errorf("entry %v, want size 7", e)
				}
			}
			if len(seen) != 4 || seen["file"] != "file" || seen["sub"] != "directory" || seen["link-other"] != "symlink" ||
				out["truncated"] != false {
				t.Errorf("listing %v, want four entries with their types", out)
			}
		},
		"stat-file": func(t *testing.T, s *harness.Server, _ line) {
			shell(t, me(s), "chmod 640 in/file; touch -d 2020-01-02T03:04:05Z in/file")
			assertFields(t, file(t, me(s), "stat", "in/file"), fields{
				"type":           "file",
				"size":           7,
				"mode":           "0640",
				"modified":       "2020-01-02T03:04:05Z",
				"isFile":         true,
				"isDirectory":    false,
				"isSymbolicLink": false,
			})
		},
		"stat-folder": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, file(t, me(s), "stat", "in"),
				fields{"type": "directory", "isFile": false, "isDirectory": true, "isSymbolicLink": false})
		},
		"stat-link": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, file(t, me(s), "stat", "link-in"),
				fields{"type": "symlink", "isFile": false, "isDirectory": false, "isSymbolicLink": true})
		},
		"delete-file": func(t *testing.T, s *harness.Server, _ line) {
			shell(t, me(s), "echo x > old")
			assertFields(t, file(t, me(s), "delete", "old"), fields{"path": "old", "deleted": true})
			shell(t, me(s), "test ! -e old")
		},
		"delete-folder": func(t *testing.T, s *harness.Server, _ line) {
			shell(t, me(s), "rm -rf old; mkdir old; echo x > old/x")
			assertError(t, file(t, me(s), "delete", "old"), "failed", "ToolError", "not empty")
			assertFields(t, file(t, me(s), "delete", "old/x"), fields{"deleted": true})
			assertFields(t, file(t, me(s), "delete", "old"), fields{"deleted": true})
			assertError(t, file(t, me(s), "delete", "/workspace"), "failed", "ToolError", "")
		},
		"fs-input": func(t *testing.T, s *harness.Server, l line) {
			field := map[string]string{
				"operation": "operation",
				"path":      "path",
				"empty":     "path",
				"encoding":  "encoding",
				"unknown":   "recursive",
			}[lastOf(l)]
			in := map[string]fields{
				"operation": {"operation": "chmod", "path": "in"},
				"path":      {"operation": "read"},
				"empty":     {"operation": "read", "path": ""},
				"encoding":  {"operation": "read", "path": "in/file", "encoding": "rot13"},
				"unknown":   {"operation": "delete", "path": "in", "recursive": true},
			}[lastOf(l)]
			assertInvalid(t, me(s).with("filesystem"), in, field)
		},
		"fs-missing": func(t *testing.T, s *harness.Server, _ line) {
			for _, o := range []string{"read", "list", "stat", "delete"} {
				assertError(t, file(t, me(s), o, "nowhere/none"), "failed", "NotFound", "nowhere")
			}
		},
		"readonly/write": func(t *testing.T, s *harness.Server, _ line) {
			assertError(t, file(t, me(s).as("readonly-files"), "write", "never", "content", "x"), "failed", "AccessDenied",
				"read-only")
			assertError(t, file(t, me(s).as("readonly-files"), "write", "/tmp/never", "content", "x"), "failed", "AccessDenied",
				"read-only")
			shell(t, me(s), "test ! -e never && test ! -e /tmp/never")
		},
		"readonly/delete": func(t *testing.T, s *harness.Server, _ line) {
			assertError(t, file(t, me(s).as("readonly-files"), "delete", "in/file"), "failed", "AccessDenied", "read-only")
			shell(t, me(s), "test -e in/file")
		},
		"readonly-rest": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, file(t, me(s).as("readonly-files"), "read", "in/file"), fields{"content": "inside\n"})
			assertFields(t, file(t, me(s).as("readonly-files"), "stat", "in/file"), fields{"isFile": true})
			if r := file(t, me(s).as("readonly-files"), "list", "in"); r.Ending != "ok" {
				t.Errorf("list in a read-only profile: %+v, want ok", r)
			}
		},
		"size-read":  func(t *testing.T, s *harness.Server, _ line) { assertReadLimit(t, me(s), "sizes", tenMiB) },
		"size-write": func(t *testing.T, s *harness.Server, _ line) { assertWriteLimit(t, me(s), "sizes", tenMiB) },
		"size-default": func(t *testing.T, s *harness.Server, _ line) {
			shell(t, me(s), "truncate -s "+itoa(tenMiB)+" edge; truncate -s "+itoa(tenMiB+1)+" over")
			assertError(t, file(t, me(s), "read", "over"), "failed", "ToolError", "at most "+itoa(tenMiB))
			if r := file(t, me(s), "read", "edge", "encoding", "base64"); r.Ending != "ok" {
				t.Errorf("read of a file at the limit: ending %s, error %+v; want ok", r.Ending, r.Error)
			}
		},
		"size-config": func(t *testing.T, s *harness.Server, _ line) {
			assertReadLimit(t, me(s), "limits", 7)
			assertWriteLimit(t, me(s), "limits", 7)
		},
		"timeouts": func(t *testing.T, s *harness.Server, _ line) {
			assertError(t, me(s).as("limits").call(t, program("cat", "/dev/zero")), "timeout", "Timeout", "1500ms")
			shell(t, me(s), "mkfifo pipe")
			eachOperation(t, me(s), "pipe", func(operation string, r v1.ToolResult) {
				if operation == "read" || operation == "list" {
					assertError(t, r, "failed", "ToolError", "")
				}
			})
		},
		"overhead": func(t *testing.T, s *harness.Server, _ line) {
			best := time.Hour
			// Repeat, because other tests load the machine.
			for end := time.Now().Add(harness.Short); best > 100*time.Millisecond && time.Now().Before(end); {
				began := time.Now()
				r := me(s).call(t, program("true"))
				best = min(best, time.Since(began))
				if r.Ending != "exited" {
					t.Fatalf("true: %+v, want exited", r)
				}
			}
			if best > 100*time.Millisecond {
				t.Errorf("a call of true takes at least %s, want at most 100 ms", best)
			}
		},
	}
}

// assertReadLimit reads a file of the maximum size, and checks that one with another byte is
// refused.
func assertReadLimit(t *testing.T, a agent, profile string, size int) {
	t.Helper()
	shell(t, a, "yes | tr -d '\\n' | head -c "+itoa(size)+" > edge; truncate -s "+itoa(size+1)+" over")
	out := outputOf(t, file(t, a.as(profile), "read", "edge"))
	if out["size"] != float64(size) || len(out["content"].(string)) != size {
		t.Errorf("file of %[1]d bytes: size %[2]v, %[3]d bytes of content; want %[1]d for both",
			size, out["size"], len(out["content"].(string)))
	}
	assertError(t, file(t, a.as(profile), "read", "over"), "failed", "ToolError", "at most "+itoa(size))
}

// assertWriteLimit writes a file of the maximum size, and checks that another byte is refused.
func assertWriteLimit(t *testing.T, a agent, profile string, size int) {
	t.Helper()
	shell(t, a, "rm -f edge over")
	assertFields(t, file(t, a.as(profile), "write", "edge", "content", strings.Repeat("x", size)),
		fields{"bytesWritten": size})
	assertError(t, file(t, a.as(profile), "write", "over", "content", strings.Repeat("x", size+1)), "failed", "ToolError",
		"at most "+itoa(size))
	if got := shell(t, a, "stat -c %s edge; ls over 2>/dev/null || :; rm edge"); got != itoa(size)+"\n" {
		t.Errorf("after the writes the files have %q, want only the one of the maximum size", got)
	}
}

// swap repeatedly exchanges a directory of the workspace and a symlink to a directory outside. It
// runs in the background.
const swap = `
mkdir -p race && echo mine > new && mv new race/file
while :; do
	mv race aside; ln -s ~/out race; rm race; mv aside race
done`

// whileSwapping runs f while the directory is being swapped, and checks that the directory outside
// is unchanged.
func whileSwapping(t *testing.T, s *harness.Server, a agent, f func()) {
	t.Helper()
	sandbox := a.call(t, program("true")).SandboxID
	sh, err := s.Client.StartShell(callContext(t), sandbox, v1.ShellRequest{Exec: v1.Exec{Command: swap}})
	if err != nil {
		t.Fatal(err)
	}
	f()
	if _, err := s.Client.KillShell(context.WithoutCancel(callContext(t)), sh.ID, 0, true); err != nil &&
		!errors.Is(err, client.ErrLost) {
		t.Error(err)
	}
	if got := shell(t, a, "ls -A ~/out; cat ~/out/file"); got != "file\ntheirs\n" {
		t.Errorf("the directory outside has %q, want it unchanged", got)
	}
}
