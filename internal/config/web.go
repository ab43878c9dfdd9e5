package config

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/llmextract"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
)

// Web configures the web tools. They run in separate sandboxes and reach hosts through the gateway,
// so Egress must be enabled.
type Web struct {
	// Template is the template of these sandboxes (default: the default template).
	Template string `json:"template"`
	// CAFile contains additional certificate authorities, in PEM (default: Egress.CAFile).
	CAFile string `json:"ca_file"`
	// Fetch and Request limit the hosts of web.fetch and http.request for all callers. Profiles can
	// restrict their tools further.
	Fetch   WebReach   `json:"fetch"`
	Request WebReach   `json:"request"`
	Search  WebSearch  `json:"search"`
	Extract WebExtract `json:"extract"`
	Cache   WebCache   `json:"cache"`
}

// WebReach corresponds to reach.Hosts.
type WebReach struct {
	// Allow lists hosts to contact over TLS at Ports. HTTP lists hosts to contact over plain HTTP
	// at HTTPPorts.
	Allow     []string `json:"allow"`
	HTTP      []string `json:"http"`
	Ports     []int    `json:"ports"`
	HTTPPorts []int    `json:"http_ports"`
	// Deny overrides both. Methods, only in Request, lists the allowed methods (default: all).
	Deny    []string `json:"deny"`
	Methods []string `json:"methods"`
}

// WebSearch configures the provider of web.search. Without a Provider there is none.
type WebSearch struct {
	// Provider is searxng, brave or serper. URL is its address (default: the public one).
	Provider string `json:"provider"`
	URL      string `json:"url"`
	// KeyFile contains the account's key, which never enters a sandbox.
	KeyFile string `json:"key_file"`
	// Results is the default number of results.
	Results int `json:"results"`
}

// WebExtract configures the model that answers prompts of web.fetch. Without a Kind, passages are
// ranked instead.
type WebExtract struct {
	// Kind is the API of the endpoint at URL: openai or anthropic.
	Kind string `json:"kind"`
	URL  string `json:"url"`
	// Model is the name of the model, and KeyFile a file with the key.
	// MaxTokens limits its answer, and Timeout the request.
	Model     string   `json:"model"`
	KeyFile   string   `json:"key_file"`
	MaxTokens int      `json:"max_tokens"`
	Timeout   Duration `json:"timeout"`
}

// WebCache limits the cache of web.fetch. If either is 0, nothing is cached.
type WebCache struct {
	// Entries limits the number of pages, and Bytes their size.
	Entries int  `json:"entries"`
	Bytes   Size `json:"bytes"`
}

func defaultWeb() Web {
	reach := func(http ...string) WebReach {
		return WebReach{
			Allow: []string{"*"}, HTTP: append([]string{}, http...), Ports: []int{443}, HTTPPorts: []int{80},
			Deny: []string{}, Methods: []string{},
		}
	}
	return Web{
		Fetch: reach(), Request: reach("*"),
		Search:  WebSearch{Results: search.DefaultResults},
		Extract: WebExtract{MaxTokens: llmextract.DefaultMaxTokens, Timeout: Duration(llmextract.DefaultTimeout)},
		Cache:   WebCache{Entries: cache.DefaultEntries, Bytes: cache.DefaultBytes},
	}
}

// Options returns the provider's options with its key.
func (s WebSearch) Options(key string) search.Options {
	return search.Options{Kind: s.Provider, URL: s.URL, Key: key, Results: s.Results}
}

// Options returns the model's options with its key.
func (x WebExtract) Options(key string) llmextract.Options {
	return llmextract.Options{Kind: x.Kind, URL: x.URL, Model: x.Model, Key: key, MaxTokens: x.MaxTokens,
		Timeout: x.Timeout.Std()}
}

func (w Web) validate(c Config) error {
	if _, known := c.Templates[cmp.Or(w.Template, DefaultTemplate)]; !known && c.TemplatesDir == "" {
		return bad("web.template", quoted(w.Template), "must be one of templates")
	}
	for key, path := range map[string]string{"ca_file": w.CAFile, "search.key_file": w.Search.KeyFile,
		"extract.key_file": w.Extract.KeyFile} {
		if path != "" && !isAbsolute(path) {
			return bad("web."+key, quoted(path), "must be an absolute path")
		}
	}
	if len(w.Fetch.Methods) > 0 {
		return bad("web.fetch.methods", w.Fetch.Methods,
			"must be empty: pages are fetched with GET (use web.request.methods)")
	}
	for key, r := range map[string]WebReach{"fetch": w.Fetch, "request": w.Request} {
		if _, err := reach.Hosts(r).Compile(); err != nil {
			return wrapField("web."+key, err)
		}
	}
	if w.Search.Provider == "" && (w.Search.URL != "" || w.Search.KeyFile != "") {
		return bad("web.search.provider", "missing", "must be searxng, brave or serper")
	}
	if w.Extract.Kind == "" && (w.Extract.URL != "" || w.Extract.KeyFile != "" || w.Extract.Model != "") {
		return bad("web.extract.kind", "missing", "must be openai or anthropic")
	}
	if w.Search.Provider != "" {
		if _, err := search.New(w.Search.Options(placeholder(w.Search.KeyFile))); err != nil {
			return wrapField("web.search", err)
		}
	}
	if w.Extract.Kind != "" {
		if _, err := llmextract.New(w.Extract.Options(placeholder(w.Extract.KeyFile))); err != nil {
			return wrapField("web.extract", err)
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
		return bad("web.cache.entries", w.Cache.Entries, "must be from 0 to 100000; 0 disables the cache")
	case w.Cache.Bytes < 0 || w.Cache.Bytes > 4<<30:
		return bad("web.cache.bytes", w.Cache.Bytes, "must be from 0 to 4GiB; 0 disables the cache")
	}
	return nil
}

// placeholder returns a placeholder if there is a key file, which is not read here.
func placeholder(file string) string {
	if file == "" {
		return ""
	}
	return "x"
}

// wrapField adds at to the field that an error starts with.
func wrapField(at string, err error) error {
	field, rest, _ := strings.Cut(err.Error(), " ")
	return fmt.Errorf("configuration: %s.%s %s: %w", at, field, rest, errdefs.ErrInvalidArgument)
}
