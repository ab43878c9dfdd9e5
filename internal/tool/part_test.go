package tool

import "testing"

func TestPartOfDirForbidsLinks(t *testing.T) {
	for _, c := range []struct {
		dirs  []string
		path  string
		plain bool
	}{
		{nil, "a/b", false},
		{[]string{"/workspace"}, "a/b", false},
		{[]string{"/workspace", "/tmp"}, "/tmp/x", false},
		{[]string{"/workspace/a", "/workspace"}, "a/b", false},
		{[]string{"/workspace/a"}, "a/b", true},
		{[]string{"/workspace/a", "/tmp"}, "a/b", true},
		{[]string{"/workspace", "/tmp/a"}, "/tmp/a/b", true},
	} {
		r, err := Caps{Dirs: c.dirs}.request(c.path)
		if err != nil || r.NoFollow != c.plain {
			t.Errorf("request(%s) with dirs %v = %+v, %v; want NoFollow %t", c.path, c.dirs, r, err, c.plain)
		}
	}
}
