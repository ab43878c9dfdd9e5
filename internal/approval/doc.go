// Package approval decides whether a call needs approval, and waits for it. It implements rules
// with conditions, budgets per day, week and month, rate limits, and approval requests that survive
// a restart of the service.
//
// The package runs no calls and implements no transport: listeners subscribe to events.
package approval
