package config

import "github.com/sandbox-orchestrator/orchestrator/internal/web/reach"

// Browser configures browser.open. Its sandboxes reach hosts through the gateway, so Egress must be
// enabled. It uses the certificate authorities of Web.
type Browser struct {
	// Template is the template of these sandboxes (docs/browser.md). If it does not exist, only the
	// simple mode works.
	Template string `json:"template"`
	// Open limits the hosts of pages and their resources for all callers. Profiles can restrict
	// their tools further.
	Open WebReach `json:"open"`
}

// DefaultBrowserTemplate is the default name of the browser template.
const DefaultBrowserTemplate = "browser"

func defaultBrowser() Browser {
	return Browser{Template: DefaultBrowserTemplate, Open: WebReach{
		Allow: []string{"*"}, HTTP: []string{"*"}, Ports: []int{443}, HTTPPorts: []int{80}, Deny: []string{},
		Methods: []string{},
	}}
}

func (b Browser) validate() error {
	if !names.MatchString(b.Template) {
		return bad("browser.template", quoted(b.Template), namesText)
	}
	if _, err := reach.Hosts(b.Open).Compile(); err != nil {
		return wrapField("browser.open", err)
	}
	return nil
}
