// Package ui serves the pages of the dashboard, and keeps the sessions of people who signed in to
// it. It decides nothing about callers: a session holds a credential, and package api asks on every
// request what that credential may do now.
//
// The pages are built by web/build.sh and embedded. They ask for nothing outside the service, and
// their Content-Security-Policy allows nothing else.
//
// Sessions are bounded in number and age, and survive a restart in a file that holds no secret. The
// package starts no goroutine. Its methods may be called concurrently.
package ui
