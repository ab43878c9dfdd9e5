// Package program is the web program: it makes one exchange through the
// sandbox's proxy and turns the body into what a model reads. It runs as the
// commands' user in a sandbox of its own, which is destroyed after it, so its
// bounds protect the answer and not the host: whatever a page does, an answer is
// written before the request's time is over.
//
// It never connects to anything but the proxy, reads no files but the image's
// authorities, and keeps nothing.
package program
