// Package browser opens one page in a Chromium that runs in a sandbox, and
// brings back what it shows: its text, title and links, a picture, a PDF.
//
// It speaks the DevTools protocol over a byte stream to the browser's debugging
// port, which its caller opens; it knows no sandboxes, rules or tools, and
// reaches nothing else. What comes back is hostile, for a page may have taken
// the browser over: messages, texts, pictures and times are bounded, and
// numbers and addresses are looked at before they are handed on. Of the
// protocol's events only those are decoded that are needed, and nothing is
// kept of them without a bound.
//
// [Open] starts two goroutines, one that reads what the browser says and one
// that answers dialogs, and waits for both. The browser is not given back: who
// opened a page destroys the sandbox. Errors are *[Fault], or the cause of the
// context.
package browser
