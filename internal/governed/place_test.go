package governed

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHomeLinksKeepsOnlyWorkspaceLinks(t *testing.T) {
	for _, c := range []struct {
		name        string
		paths, want map[string]string
	}{
		{
			"below the home directory",
			map[string]string{"/home/user/projects": "/workspace"},
			map[string]string{"/home/user/projects": "/workspace"},
		},
		{"elsewhere", map[string]string{"/srv/shop": "/workspace", "/home/username/x": "/workspace"}, map[string]string{}},
		{"the home directory itself", map[string]string{"/home/user": "/workspace"}, map[string]string{}},
		{"not a directory of the workspace", map[string]string{"/home/user/t": "/tmp", "/home/user/w": "/workspaces"}, map[string]string{}},
		{
			"one below another",
			map[string]string{
				"/home/user/a": "/workspace", "/home/user/a/b": "/workspace/b", "/home/user/a/b/c": "/workspace",
			},
			map[string]string{"/home/user/a": "/workspace"},
		},
	} {
		if diff := cmp.Diff(c.want, homeLinks(c.paths)); diff != "" {
			t.Errorf("%s: homeLinks (-want +got):\n%s", c.name, diff)
		}
	}
}
