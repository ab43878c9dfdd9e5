package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

const (
	// answerTime is how long a page's scripts may keep a question waiting.
	answerTime = 2 * time.Second
	linkText   = 200
	maxURL     = 8 << 10
)

// world is where our scripts run: they see the page's document, and the page's
// own scripts cannot change what they use.
const world = "orchestrator"

// lookScript gives what a page shows, bounded, as JSON.
const lookScript = `((maxText, maxLinks, maxURL, linkText) => {
  const cut = (s, n) => { s = String(s ?? ""); return s.length > n ? s.slice(0, n) : s; };
  const root = document.body ?? document.documentElement;
  const text = String(root?.innerText ?? root?.textContent ?? "");
  const links = [];
  for (const a of document.links) {
    if (links.length >= maxLinks) break;
    if (a.href.length <= maxURL) links.push({url: a.href, text: cut(a.textContent, 4 * linkText)});
  }
  return JSON.stringify({url: cut(location.href, maxURL), title: cut(document.title, 1000), length: text.length, text: cut(text, maxText), links});
})`

// seenScript says whether a selector shows something.
const seenScript = `((selector) => {
  try {
    for (const e of document.querySelectorAll(selector)) {
      if (e.checkVisibility({visibilityProperty: true, opacityProperty: false})) return "seen";
    }
    return "not yet";
  } catch (e) { return e.name === "SyntaxError" ? "no selector" : "not yet"; }
})`

// links are the first MaxLinks of a list in JSON. The rest is not taken into
// memory: a list can be that of somebody who took the browser over.
type links []Link

// UnmarshalJSON takes lists alone.
func (l *links) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("no list")
	}
	for d.More() && len(*l) < MaxLinks {
		var one Link
		if err := d.Decode(&one); err != nil {
			return err
		}
		*l = append(*l, one)
	}
	return nil
}

// evaluated is what is wanted of an answer to Runtime.evaluate.
type evaluated struct {
	Result struct {
		Value json.RawMessage `json:"value"`
	} `json:"result"`
	ExceptionDetails json.RawMessage `json:"exceptionDetails"`
}

var evaluate = cdp.Command[runtime.EvaluateParams, evaluated]{Method: runtime.CommandEvaluate}

// extract brings the text and links of the page.
func (v *visit) extract(ctx context.Context) error {
	// A character may be two UTF-16 units.
	script := fmt.Sprintf("%s(%d, %d, %d, %d)", lookScript, 2*v.r.MaxText, MaxLinks, maxURL, linkText)
	raw, err := v.ask(ctx, script)
	if err != nil {
		return explain(ctx, err, "looking at the page")
	}
	var look struct {
		URL, Title, Text string
		Length           int64
		Links            links
	}
	if err := json.Unmarshal([]byte(raw), &look); err != nil {
		return fault(FaultBrowser, "looking at the page: the browser answers with no JSON")
	}
	v.out.URL, v.out.Title = clean(look.URL, maxURL), clean(look.Title, 500)
	text := web.Plain(look.Text)
	v.out.Text = cut(text, v.r.MaxText)
	v.out.Truncated, v.out.TextLength = len(v.out.Text) < len(text) || look.Length > int64(2*v.r.MaxText), look.Length
	seen := map[string]bool{}
	for _, l := range look.Links {
		u, err := url.Parse(l.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || seen[l.URL] {
			continue
		}
		seen[l.URL] = true
		v.out.Links = append(v.out.Links, Link{URL: clean(l.URL, maxURL), Text: clean(l.Text, linkText)})
	}
	return nil
}

// waitFor waits until the request's selector shows something.
func (v *visit) waitFor(ctx, waiting context.Context) error {
	selector, err := json.Marshal(v.r.WaitFor)
	if err != nil {
		return err
	}
	for {
		answer, err := v.ask(ctx, seenScript+"("+string(selector)+")")
		switch {
		case err != nil:
			return explain(ctx, err, "waiting for the selector")
		case answer == "seen":
			return nil
		case answer == "no selector":
			return fault(FaultSelector, "is no selector of CSS")
		}
		select {
		case <-time.After(pollTime):
		case <-waiting.Done():
			if err := v.reached(); err != nil {
				return err
			}
			return fault(web.FaultTimeout, "nothing that %q selects was seen in time", clean(v.r.WaitFor, 100))
		}
	}
}

var errBusy = errors.New("the page gives no answer")

// ask has a script of ours run beside the page's. A page whose own scripts do
// not end is stopped, and asked again.
func (v *visit) ask(ctx context.Context, script string) (string, error) {
	answer, err := v.askFor(ctx, answerTime, script)
	if !errors.Is(err, errBusy) {
		return answer, err
	}
	if err := v.stop(ctx); err != nil {
		return "", err
	}
	answer, err = v.askFor(ctx, answerTime, script)
	if errors.Is(err, errBusy) {
		err = fault(FaultBusy, "the page leaves the browser no time to answer")
	}
	return answer, err
}

// stop ends the page's scripts for good.
func (v *visit) stop(ctx context.Context) error {
	v.mu.Lock()
	v.stopped = true
	v.mu.Unlock()
	short, cancel := context.WithTimeoutCause(ctx, answerTime, errBusy)
	defer cancel()
	// Both get past a script that runs; if one of them is not answered, the next
	// question tells.
	_, off := v.send(short, emulation.SetScriptExecutionDisabled.Method, emulation.SetScriptExecutionDisabledParams{Value: true})
	_, ended := v.send(short, runtime.TerminateExecution.Method, struct{}{})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, err := range []error{off, ended} {
		if lost := (*lostError)(nil); errors.As(err, &lost) {
			return err
		}
	}
	return nil
}

func (v *visit) askFor(ctx context.Context, within time.Duration, script string) (string, error) {
	short, cancel := context.WithTimeoutCause(ctx, within, errBusy)
	defer cancel()
	yes, no := true, false
	for {
		in, err := call(short, v.conn, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: v.frame, WorldName: world})
		if err == nil {
			var r evaluated
			r, err = call(short, v.conn, evaluate, runtime.EvaluateParams{Expression: script, ContextID: in.ExecutionContextID, ReturnByValue: &yes, AwaitPromise: &no, Silent: &yes})
			if err == nil && r.ExceptionDetails == nil && r.Result.Value != nil {
				var s string
				if err := json.Unmarshal(r.Result.Value, &s); err != nil {
					return "", &lostError{err}
				}
				return s, nil
			}
		}
		if lost := (*lostError)(nil); errors.As(err, &lost) || short.Err() != nil {
			return "", err
		}
		// The page has gone on to another document meanwhile: there it is asked again.
		select {
		case <-time.After(pollTime):
		case <-short.Done():
			return "", context.Cause(short)
		}
	}
}

// attend dismisses the dialogs that the page opens, and lets it leave: an open
// one stands in the way of everything. A page with too many is stopped, and
// given up where even that does not help. So is one that crashed.
func (v *visit) attend(ctx context.Context, giveUp context.CancelCauseFunc) {
	var stopping sync.WaitGroup
	defer stopping.Wait()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-v.ended:
			return
		case <-v.w.crashed:
			giveUp(fault(FaultCrashed, "the page crashed: it may have used up the sandbox's memory"))
			return
		case kind := <-v.w.dialogs:
			leave := kind == string(page.DialogTypeBeforeunload)
			if _, err := v.send(ctx, page.HandleJavaScriptDialog.Method, page.HandleJavaScriptDialogParams{Accept: leave}); err != nil && ctx.Err() != nil {
				return
			}
			switch n {
			case maxDialogs: // while the next ones are answered: it takes effect between two
				stopping.Go(func() { _ = v.stop(ctx) }) // what goes wrong with it shows in the next dialogs
			case 10 * maxDialogs:
				giveUp(fault(FaultBusy, "the page opens dialogs without end"))
			}
		}
	}
}
