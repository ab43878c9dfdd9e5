package tool

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// get returns a tool of this package by name.
func get(t *testing.T, name string) *Tool {
	t.Helper()
	i := slices.IndexFunc(Tools(), func(tl *Tool) bool { return tl.Name == name })
	if i < 0 {
		t.Fatalf("tool %s not found", name)
	}
	return Tools()[i]
}

func TestCommandSchemaHasItsFields(t *testing.T) {
	b := get(t, "system.bash")
	for _, field := range []string{"command", "cwd", "env", "stdin", "timeout_ms", "run_in_background"} {
		if !strings.Contains(string(b.Input), `"`+field+`"`) {
			t.Errorf("schema = %s, want field %s", b.Input, field)
		}
	}
	if !strings.Contains(string(b.Input), `"required":["command"]`) {
		t.Errorf("schema = %s, want only command required", b.Input)
	}
}

func TestCheckRejectsInvalidInputs(t *testing.T) {
	for _, c := range []struct{ tool, input, want string }{
		{"system.bash", `{}`, "command is missing"},
		{"system.bash", `{"command": ""}`, "command is empty"},
		{"system.bash", `{"command": " \n"}`, "command is empty"},
		{"system.bash", `{"command": "a\u0000b"}`, "command holds a NUL byte"},
		{"system.bash", `{"command": 7}`, "command is a JSON number and must be a string"},
		{"system.bash", `{"command": "a", "colour": 1}`, "colour is unknown"},
		{"system.bash", `{"command": "a"`, "input is an incomplete JSON value"},
		{"system.bash", `[]`, "input is a JSON array and must be an object"},
		{"system.bash", `{"command": "a", "timeout_ms": -1}`, "timeout_ms is negative"},
		{"system.run", `{"argv": []}`, "argv is empty: give the program and its arguments"},
		{"system.run", `{"argv": ["a\u0000"]}`, "argv holds a NUL byte"},
		{"system.output", `{"shell_id": "x", "stream": "both"}`, `stream is "both": use stdout or stderr`},
		{"system.output", `{"shell_id": "x", "offset": -1}`, "offset is negative"},
		{"system.kill", `{"shell_id": ""}`, "shell_id is empty"},
		{"system.kill", `{"shell_id": "x", "grace_ms": 99999999}`, "grace_ms is 99999999: from 0 to 60000"},
		{"fs.read", `{"path": "a", "encoding": "rot13"}`, `encoding is "rot13": use text or base64`},
		{"fs.write", `{"path": "a"}`, "content is missing"},
		{"fs.write", `{"path": "a", "content": "!", "encoding": "base64"}`, "content is not base64"},
		{"fs.write", `{"path": "a", "content": "", "mode": "9"}`, `mode is "9": give octal permission bits such as 0644`},
		{"fs.write", `{"path": "a", "content": "", "mode": "4755"}`, `mode is "4755": from 0001 to 0777`},
		{"fs.edit", `{"path": "a", "old": "", "new": "b"}`, "old is empty"},
		{"fs.edit", `{"path": "a", "old": "b", "new": "b"}`, "new is the same as old"},
		{"fs.search", `{"pattern": ""}`, "pattern is empty"},
		{"fs.search", `{"pattern": "a", "before": 99}`, "before is 99: from 0 to 10"},
		{"fs.glob", `{"pattern": "*", "max_results": -4}`, "max_results is -4: from 0 to 1000"},
	} {
		if _, err := get(t, c.tool).Check(json.RawMessage(c.input)); err == nil || err.Error() != c.want {
			t.Errorf("Check of %s with %s: %v, want %s", c.tool, c.input, err, c.want)
		}
	}
}

func TestPathsStayInDirsOfCaps(t *testing.T) {
	c := Caps{Dirs: []string{"/workspace", "/tmp"}, Alias: map[string]string{"/home/user/projects": "/workspace"}}
	for in, want := range map[string]string{
		"a":                             "/workspace/a",
		"":                              "/workspace",
		"./a/../b":                      "/workspace/b",
		"/home/user/projects":           "/workspace",
		"/home/user/projects/x/y":       "/workspace/x/y",
		"/home/user/projects/../../etc": "",
		"/home/user/projects2":          "",
		"/tmp/x":                        "/tmp/x",
		"/tmpx":                         "",
		"../etc/passwd":                 "",
		"/etc/passwd":                   "",
		"/workspace/../etc":             "",
		"/workspace/../tmp/a":           "/tmp/a",
		"//home/user//projects/a":       "/workspace/a",
	} {
		got, err := c.path("path", in)
		if want == "" && err == nil || want != "" && (err != nil || got != want) {
			t.Errorf("path(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestKeeperCuts(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  Cut
		in   string
		want string
		more bool
	}{
		{"nothing to cut", Cut{Limit: 5}, "hello", "hello", false},
		{"head of bytes", Cut{Limit: 3, Keep: Head, Marker: "…"}, "hello", "hel…", true},
		{"tail of bytes", Cut{Limit: 3, Keep: Tail, Marker: "…"}, "hello", "…llo", true},
		{"both ends", Cut{Limit: 4, Marker: "<{omitted} of {total} {unit}>"}, "abcdefgh", "ab<4 of 8 bytes>gh", true},
		{"characters are not bytes", Cut{Limit: 5, Unit: Characters, Keep: Head}, "äöüßé", "äöüßé", false},
		{"head of characters", Cut{Limit: 2, Unit: Characters, Keep: Head, Marker: "!"}, "äöüßé", "äö!", true},
		{"tail of characters", Cut{Limit: 2, Unit: Characters, Keep: Tail, Marker: "!"}, "äöüßé", "!ßé", true},
		{"both ends of characters", Cut{Limit: 2, Unit: Characters, Marker: "<{omitted}>"}, "äöüßé", "ä<3>é", true},
		{"a character that is cut is dropped", Cut{Limit: 3, Keep: Head}, "äö", "ä", true},
		{"and at the tail", Cut{Limit: 3, Keep: Tail}, "äö", "ö", true},
		{"bytes that are no text", Cut{Limit: 9}, "a\xffb", "a\uFFFDb", false},
		{"characters over the bytes of the buffer", Cut{Limit: 3, Unit: Characters, Keep: Head}, strings.Repeat("x", 100),
			"xxx", true},
		{"the tail over the bytes of the buffer", Cut{Limit: 3, Unit: Characters, Keep: Tail}, strings.Repeat("x",
			97) + "abc", "abc", true},
	} {
		for _, step := range []int{1, 2, 3, 7, 1000} {
			k := NewKeeper(c.cut)
			for rest := []byte(c.in); len(rest) > 0; {
				n := min(step, len(rest))
				k.Write(rest[:n])
				rest = rest[n:]
			}
			if got, more := k.Text(); got != c.want || more != c.more || k.Total() != int64(len(c.in)) {
				t.Errorf("%s in steps of %d: Text = %q, %t; want %q, %t", c.name, step, got, more, c.want, c.more)
			}
		}
	}
}
