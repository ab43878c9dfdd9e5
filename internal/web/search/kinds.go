package search

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// searxng is a SearXNG instance. It returns one page of results, regardless of the requested number
// (docs.searxng.org/dev/search_api).
var searxng = kind{
	name: SearXNG,
	request: func(base *url.URL, query string, _ int) (web.Request, error) {
		return get(base, "/search", url.Values{"q": {query}, "format": {"json"}}), nil
	},
	results: func(body []byte) ([]Result, error) {
		var a struct {
			Results []struct {
				Title   string `json:"title"`
				URL     string `json:"url"`
				Content string `json:"content"`
				Date    string `json:"publishedDate"`
			} `json:"results"`
		}
		if err := json.Unmarshal(body, &a); err != nil {
			return nil, err
		}
		out := make([]Result, 0, len(a.Results))
		for _, r := range a.Results {
			out = append(out, Result{Title: r.Title, URL: r.URL, Snippet: r.Content, Age: r.Date})
		}
		return out, nil
	},
	hint: func(status int) string {
		if status == http.StatusForbidden {
			return "its settings do not allow the format json: add it to search.formats"
		}
		return ""
	},
}

// brave is the Brave Web Search API (api-dashboard.search.brave.com).
var brave = kind{
	name: Brave, base: "https://api.search.brave.com/res/v1", header: "X-Subscription-Token",
	request: func(base *url.URL, query string, n int) (web.Request, error) {
		return get(base, "/web/search", url.Values{
			"q": {query}, "count": {strconv.Itoa(n)}, "text_decorations": {"false"}, "result_filter": {"web"},
		}), nil
	},
	results: func(body []byte) ([]Result, error) {
		var a struct {
			Web struct {
				Results []struct {
					Title       string `json:"title"`
					URL         string `json:"url"`
					Description string `json:"description"`
					Age         string `json:"age"`
				} `json:"results"`
			} `json:"web"`
		}
		if err := json.Unmarshal(body, &a); err != nil {
			return nil, err
		}
		out := make([]Result, 0, len(a.Web.Results))
		for _, r := range a.Web.Results {
			out = append(out, Result{Title: r.Title, URL: r.URL, Snippet: r.Description, Age: r.Age})
		}
		return out, nil
	},
	hint: keyHint,
}

// serper is the Google search API of serper.dev.
var serper = kind{
	name: Serper, base: "https://google.serper.dev", header: "X-API-KEY",
	request: func(base *url.URL, query string, n int) (web.Request, error) {
		body, err := json.Marshal(map[string]any{"q": query, "num": n})
		return web.Request{
			URL: base.JoinPath("/search").String(), Method: http.MethodPost, Body: body,
			Header: [][2]string{{"Content-Type", "application/json"}},
		}, err
	},
	results: func(body []byte) ([]Result, error) {
		var a struct {
			Organic []struct {
				Title   string `json:"title"`
				Link    string `json:"link"`
				Snippet string `json:"snippet"`
				Date    string `json:"date"`
			} `json:"organic"`
		}
		if err := json.Unmarshal(body, &a); err != nil {
			return nil, err
		}
		out := make([]Result, 0, len(a.Organic))
		for _, r := range a.Organic {
			out = append(out, Result{Title: r.Title, URL: r.Link, Snippet: r.Snippet, Age: r.Date})
		}
		return out, nil
	},
	hint: keyHint,
}

func get(base *url.URL, path string, query url.Values) web.Request {
	u := base.JoinPath(path)
	u.RawQuery = query.Encode()
	return web.Request{URL: u.String(), Method: http.MethodGet}
}

// keyHint explains account errors. Brave sends 422 for an unknown key.
func keyHint(status int) string {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity:
		return "it rejects the key: see web.search.key_file"
	case http.StatusPaymentRequired:
		return "the account has no credit left"
	}
	return ""
}
