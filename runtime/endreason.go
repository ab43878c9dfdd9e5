package runtime

import "errors"

// An EndReasoner knows why a sandbox has ended: a Sandbox whose engine reports it, or the error of
// an Adopt that found an ended sandbox.
type EndReasoner interface {
	// EndReason returns why the sandbox has ended, as one line for its caller, or "" if it lives or
	// the reason is unknown. It contains no text from inside the sandbox.
	EndReason() string
}

// EndReasonOf returns why a sandbox has ended, or "" if its driver does not report it.
func EndReasonOf(s Sandbox) string {
	if e, ok := s.(EndReasoner); ok {
		return e.EndReason()
	}
	return ""
}

// EndReasonIn returns why a sandbox has ended according to the error of Adopt, or "".
func EndReasonIn(err error) string {
	if e, ok := errors.AsType[interface {
		error
		EndReasoner
	}](err); ok {
		return e.EndReason()
	}
	return ""
}
