package v1

// ToolEvent is one server-sent event of a streamed tool call:
//
//   - "approval": the call waits for an answer to Approval;
//   - "started": it runs, in the sandbox SandboxID where it needs one;
//   - "stdout", "stderr": what a command writes, as Data, or as Base64 where
//     the bytes are not UTF-8;
//   - "end": Result, the last one.
//
// Output is told for the eye: the result says what counts. A listener that is
// too slow misses some of it, and Missed says how many bytes before this event.
type ToolEvent struct {
	Type      string      `json:"type"`
	Approval  *Approval   `json:"approval,omitempty"`
	SandboxID string      `json:"sandbox_id,omitempty"`
	Data      string      `json:"data,omitempty"`
	Base64    string      `json:"base64,omitempty"`
	Missed    int64       `json:"missed,omitempty"`
	Result    *ToolResult `json:"result,omitempty"`
}
