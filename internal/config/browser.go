package config

import "github.com/sandbox-orchestrator/orchestrator/internal/tool"

// Browser configures browser.open. Its sandboxes reach hosts by way of the
// gateway, so Egress has to be enabled; of Web it has the authorities.
type Browser struct {
	// Template is that of these sandboxes (docs/browser.md). Where there is none
	// of this name, pages are opened without a browser alone.
	Template string `json:"template"`
	// Open is what pages and their parts may be got from, for everybody; profiles
	// bound their tools further.
	Open WebReach `json:"open"`
}

// DefaultBrowserTemplate is the name of the template for browsers.
const DefaultBrowserTemplate = "browser"

func defaultBrowser() Browser {
	return Browser{Template: DefaultBrowserTemplate, Open: WebReach{
		Allow: []string{"*"}, HTTP: []string{"*"}, Ports: []int{443}, HTTPPorts: []int{80}, Deny: []string{}, Methods: []string{},
	}}
}

func (b Browser) validate() error {
	if !names.MatchString(b.Template) {
		return bad("browser.template", quoted(b.Template), namesText)
	}
	if _, err := tool.Reach(b.Open).Compile(); err != nil {
		return wrongly("browser.open", err)
	}
	return nil
}
