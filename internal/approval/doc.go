// Package approval decides whether a call needs somebody's consent, and waits
// for it: rules with conditions, budgets over days, weeks and months, rate
// limits, and questions that survive a restart of the service.
//
// It never runs a call and knows no transport: listeners subscribe.
package approval
