package config

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/llmextract"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
)

// Web configures the tools of the web. They run in sandboxes of their own and
// reach hosts by way of the gateway, so Egress has to be enabled.
type Web struct {
	// Template is that of these sandboxes; "" is the default one.
	Template string `json:"template"`
	// CAFile has further authorities, in PEM, that hosts are known by; "" is
	// Egress.CAFile.
	CAFile string `json:"ca_file"`
	// Fetch and Request are what web.fetch and http.request may reach, for
	// everybody; profiles bound their tools further.
	Fetch   WebReach   `json:"fetch"`
	Request WebReach   `json:"request"`
	Search  WebSearch  `json:"search"`
	Extract WebExtract `json:"extract"`
	Cache   WebCache   `json:"cache"`
}

// WebReach is as tool.Reach.
type WebReach struct {
	// Allow are hosts over TLS at Ports, HTTP hosts in plain HTTP at HTTPPorts.
	Allow     []string `json:"allow"`
	HTTP      []string `json:"http"`
	Ports     []int    `json:"ports"`
	HTTPPorts []int    `json:"http_ports"`
	// Deny wins. Methods, of Request alone, are those allowed; empty: all.
	Deny    []string `json:"deny"`
	Methods []string `json:"methods"`
}

// WebSearch is who is asked by web.search; no Provider is nobody.
type WebSearch struct {
	// Provider is searxng, brave or serper; URL where it is, if not at its public
	// address.
	Provider string `json:"provider"`
	URL      string `json:"url"`
	// KeyFile has the account's key. It never comes into a sandbox.
	KeyFile string `json:"key_file"`
	// Results is how many are given unless a call says otherwise.
	Results int `json:"results"`
}

// WebExtract is the model that web.fetch asks about pages; no Kind is none: then
// passages are ranked.
type WebExtract struct {
	// Kind is openai or anthropic: the form in which the endpoint at URL is asked.
	Kind      string   `json:"kind"`
	URL       string   `json:"url"`
	Model     string   `json:"model"`
	KeyFile   string   `json:"key_file"`
	MaxTokens int      `json:"max_tokens"`
	Timeout   Duration `json:"timeout"`
}

// WebCache bounds what web.fetch keeps; 0 of either is nothing.
type WebCache struct {
	Entries int  `json:"entries"`
	Bytes   Size `json:"bytes"`
}

func defaultWeb() Web {
	reach := func(http ...string) WebReach {
		return WebReach{Allow: []string{"*"}, HTTP: append([]string{}, http...), Ports: []int{443}, HTTPPorts: []int{80}, Deny: []string{}, Methods: []string{}}
	}
	return Web{
		Fetch: reach(), Request: reach("*"),
		Search:  WebSearch{Results: search.DefaultResults},
		Extract: WebExtract{MaxTokens: llmextract.DefaultMaxTokens, Timeout: Duration(llmextract.DefaultTimeout)},
		Cache:   WebCache{Entries: cache.DefaultEntries, Bytes: cache.DefaultBytes},
	}
}

// Options are those of the provider, with its key.
func (s WebSearch) Options(key string) search.Options {
	return search.Options{Kind: s.Provider, URL: s.URL, Key: key, Results: s.Results}
}

// Options are those of the model, with its key.
func (x WebExtract) Options(key string) llmextract.Options {
	return llmextract.Options{Kind: x.Kind, URL: x.URL, Model: x.Model, Key: key, MaxTokens: x.MaxTokens, Timeout: x.Timeout.Std()}
}

func (w Web) validate(c Config) error {
	if _, known := c.Templates[cmp.Or(w.Template, DefaultTemplate)]; !known && c.TemplatesDir == "" {
		return bad("web.template", quoted(w.Template), "must be one of templates")
	}
	for key, path := range map[string]string{"ca_file": w.CAFile, "search.key_file": w.Search.KeyFile, "extract.key_file": w.Extract.KeyFile} {
		if path != "" && !filepath.IsAbs(path) {
			return bad("web."+key, quoted(path), "must be an absolute path")
		}
	}
	if len(w.Fetch.Methods) > 0 {
		return bad("web.fetch.methods", w.Fetch.Methods, "are for web.request: pages are fetched with GET")
	}
	for key, r := range map[string]WebReach{"fetch": w.Fetch, "request": w.Request} {
		if _, err := tool.Reach(r).Compile(); err != nil {
			return wrongly("web."+key, err)
		}
	}
	if w.Search.Provider == "" && (w.Search.URL != "" || w.Search.KeyFile != "") {
		return bad("web.search.provider", "missing", "must be searxng, brave or serper")
	}
	if w.Extract.Kind == "" && (w.Extract.URL != "" || w.Extract.KeyFile != "" || w.Extract.Model != "") {
		return bad("web.extract.kind", "missing", "must be openai or anthropic")
	}
	if w.Search.Provider != "" {
		if _, err := search.New(w.Search.Options(standIn(w.Search.KeyFile))); err != nil {
			return wrongly("web.search", err)
		}
	}
	if w.Extract.Kind != "" {
		if _, err := llmextract.New(w.Extract.Options(standIn(w.Extract.KeyFile))); err != nil {
			return wrongly("web.extract", err)
		}
	}
	switch {
	case w.Search.Results < 1 || w.Search.Results > search.MaxResults:
		return bad("web.search.results", w.Search.Results, fmt.Sprintf("must be from 1 to %d", search.MaxResults))
	case w.Extract.MaxTokens < 1 || w.Extract.MaxTokens > llmextract.MaxTokens:
		return bad("web.extract.max_tokens", w.Extract.MaxTokens, fmt.Sprintf("must be from 1 to %d", llmextract.MaxTokens))
	case w.Extract.Timeout <= 0:
		return bad("web.extract.timeout", w.Extract.Timeout, "must be more than 0")
	case w.Cache.Entries < 0 || w.Cache.Entries > 100_000:
		return bad("web.cache.entries", w.Cache.Entries, "must be from 0 to 100000; 0 keeps nothing")
	case w.Cache.Bytes < 0 || w.Cache.Bytes > 4<<30:
		return bad("web.cache.bytes", w.Cache.Bytes, "must be from 0 to 4GiB; 0 keeps nothing")
	}
	return nil
}

// standIn is a key where there is one, which is not read here.
func standIn(file string) string {
	if file == "" {
		return ""
	}
	return "x"
}

// wrongly is an error that begins with a field below at.
func wrongly(at string, err error) error {
	field, rest, _ := strings.Cut(err.Error(), " ")
	return fmt.Errorf("configuration: %s.%s %s: %w", at, field, rest, errdefs.ErrInvalidArgument)
}
