// Package browser opens one page in a Chromium in a sandbox and returns its text, title and links,
// a screenshot and a PDF.
//
// It uses the DevTools protocol over a byte stream to the debugging port of the browser, which the
// caller opens. All data from the browser is untrusted, because the page may have taken it over:
// messages, texts, images and times are bounded, and numbers and URLs are checked. Only the
// required events are decoded.
//
// [Open] starts two goroutines, one that reads messages and one that answers dialogs, and waits for
// both. The caller must destroy the sandbox afterwards, because the browser is not reset. Errors
// are *[Fault], or the cause of the context.
package browser
