// Package audit keeps a tamper-evident log of calls: who called what, why it was allowed and how it
// ended. Each record carries a hash that covers the record before it. Secrets are redacted before a
// record is written.
//
// The package records decisions and makes none.
package audit
