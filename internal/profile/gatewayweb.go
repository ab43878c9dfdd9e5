package profile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/webtool"
)

// http converts the settings of the http tool.
func (g *gatewayReader) http() error {
	h, at := &g.doc.Tools.HTTP, "tools.http"
	g.enabled("http", h.Enabled)
	for i, m := range h.AllowedMethods {
		if !slices.Contains([]string{"GET", "POST", "PUT", "DELETE"}, m) {
			return g.src.fail(fmt.Sprintf("%s.allowedMethods[%d]", at, i), "is %q: use GET, POST, PUT or DELETE",
				clip.Message(m))
		}
	}
	if err := g.positive(at+".timeoutMs", float64(h.TimeoutMS)); err != nil {
		return err
	}
	if err := g.positive(at+".maxResponseSize", float64(h.MaxResponseSize)); err != nil {
		return err
	}
	allow, err := g.domains(at+".allowedDomains", h.AllowedDomains)
	if err != nil {
		return err
	}
	deny, err := g.domains(at+".blockedDomains", h.BlockedDomains)
	if err != nil {
		return err
	}
	w := reach.Caps{Hosts: reach.Hosts{Allow: allow, HTTP: allow, Deny: deny, Methods: h.AllowedMethods},
		MaxBytes: h.MaxResponseSize}
	if h.AllowedDomains == nil && len(deny)+len(h.AllowedMethods) == 0 && h.MaxResponseSize == 0 && h.TimeoutMS == 0 {
		return nil
	}
	c := &g.tool("http").Caps
	c.TimeoutMS, c.Web = h.TimeoutMS, &w
	return nil
}

// domains returns host patterns for egress rules: a domain includes all names below it.
func (g *gatewayReader) domains(at string, list []string) ([]string, error) {
	if _, ok := g.src.lines[at]; ok && len(list) == 0 && strings.HasSuffix(at, ".allowedDomains") {
		return nil, g.src.fail(at, "is empty and allows no host: remove it to allow all, or set enabled to false")
	}
	var out []string
	for i, domain := range list {
		hosts := []string{domain}
		_, addr := netip.ParseAddr(domain)
		_, block := netip.ParsePrefix(domain)
		if addr != nil && block != nil && !strings.HasPrefix(domain, "*") {
			hosts = append(hosts, "*."+domain)
		}
		if _, err := (reach.Hosts{Allow: hosts}).Compile(); err != nil {
			_, why, _ := strings.Cut(err.Error(), " ")
			return nil, g.src.fail(fmt.Sprintf("%s[%d]", at, i), "is not a host: %s", clip.Message(why))
		}
		out = append(out, hosts...)
	}
	return out, nil
}

// browserModes maps the modes of the gateway system to those of browser.open.
var browserModes = map[string]string{"simple": webtool.Simple, "playwright": webtool.Real}

// maxBrowserText is the maximum of caps.web.max_text, in characters.
const maxBrowserText = 200_000

// browser converts the settings of the browser tool. Its default domains are those of http.
func (g *gatewayReader) browser() error {
	b, h, at := &g.doc.Tools.Browser, &g.doc.Tools.HTTP, "tools.browser"
	if b.Mode != "" && browserModes[b.Mode] == "" {
		return g.src.fail(at+".mode", "is %q: use simple or playwright%s", clip.Message(b.Mode),
			nearest(b.Mode, []string{"simple", "playwright"}))
	}
	g.enabled("browser", b.Enabled)
	if err := g.positive(at+".timeoutMs", float64(b.TimeoutMS)); err != nil {
		return err
	}
	if err := g.positive(at+".maxContentLength", float64(b.MaxContentLength)); err != nil {
		return err
	}
	if b.MaxContentLength > maxBrowserText {
		g.warn(at+".maxContentLength", "is %d: limited to %d characters", b.MaxContentLength, maxBrowserText)
		b.MaxContentLength = maxBrowserText
	}
	domains, of := b.AllowedDomains, at
	if domains == nil {
		domains, of = h.AllowedDomains, "tools.http"
	}
	allow, err := g.domains(of+".allowedDomains", domains)
	if err != nil {
		return err
	}
	deny, err := g.domains("tools.http.blockedDomains", h.BlockedDomains)
	if err != nil {
		return err
	}
	if b.Mode != "" {
		g.tool("browser").Arguments = fmt.Sprintf(browserArguments, browserModes[b.Mode])
	}
	if len(allow)+len(deny) > 0 || b.MaxContentLength > 0 || b.TimeoutMS > 0 {
		c := &g.tool("browser").Caps
		c.TimeoutMS, c.Web = b.TimeoutMS, &reach.Caps{Hosts: reach.Hosts{Allow: allow, HTTP: allow, Deny: deny},
			MaxText: int(b.MaxContentLength)}
	}
	return nil
}

// browserArguments are those of the profile gateway, with a fixed mode.
const browserArguments = `{"url": input.url, ?"wait_for": input.?waitForSelector, ` +
	`"screenshot": input.screenshot ? "viewport" : "", "mode": "%s"}`
