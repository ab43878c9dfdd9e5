package governed

import (
	"encoding/json"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool/builtin"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/webtool"
)

// Calls provide what each built-in tool needs.
func TestEveryToolCanRun(t *testing.T) {
	for _, b := range builtin.All() {
		p, err := b.Check(json.RawMessage(minimal[b.Name]))
		if err != nil {
			t.Errorf("Check of %s: %v", b.Name, err)
			continue
		}
		switch p.Call.(type) {
		case tool.Run[tool.Runner], tool.Run[tool.Files]:
			if !p.NeedsSandbox {
				t.Errorf("%s: NeedsSandbox = false, want true", b.Name)
			}
		case tool.Run[tool.Shells], tool.Run[webtool.Web], tool.Run[webtool.Browser]:
			if p.NeedsSandbox {
				t.Errorf("%s: NeedsSandbox = true, want false", b.Name)
			}
		default:
			t.Errorf("%s needs %T, want a type that transaction.run provides", b.Name, p.Call)
		}
	}
}

// minimal has a valid input of each tool.
var minimal = map[string]string{
	"browser.open":  `{"url": "https://a.example/"}`,
	"fs.delete":     `{"path": "a"}`,
	"fs.edit":       `{"path": "a", "old": "b", "new": "c"}`,
	"fs.glob":       `{"pattern": "*"}`,
	"fs.list":       `{}`,
	"fs.read":       `{"path": "a"}`,
	"fs.search":     `{"pattern": "a"}`,
	"fs.stat":       `{"path": "a"}`,
	"fs.write":      `{"path": "a", "content": "b"}`,
	"http.request":  `{"url": "https://a.example/"}`,
	"system.bash":   `{"command": "true"}`,
	"system.kill":   `{"shell_id": "a"}`,
	"system.line":   `{"command": "true"}`,
	"system.output": `{"shell_id": "a"}`,
	"system.run":    `{"argv": ["true"]}`,
	"system.shells": `{}`,
	"web.fetch":     `{"url": "https://a.example/"}`,
	"web.search":    `{"query": "a"}`,
}
