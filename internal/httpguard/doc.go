// Package httpguard bounds what clients of an HTTP service can take: connections, memory of bodies
// and answers, and time.
//
// A [ConnLimiter] shares the connections among callers, a [Budget] the memory of bodies or answers,
// and a [RefusalPacer] the CPU time of refusals. A [Body] must arrive, and an [Answer] be accepted,
// at a minimum speed. Errors say which bound was reached and when to try again. The package knows
// neither routes nor what a request does.
package httpguard
