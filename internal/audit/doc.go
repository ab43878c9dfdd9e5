// Package audit keeps a log that tells who called what, why it was allowed and
// how it ended, and that shows when somebody changed it: each record carries
// the hash of the one before. Secrets are redacted before a record is made.
//
// It never decides anything.
package audit
