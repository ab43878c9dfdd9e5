package v1

// ToolEvent is one server-sent event of a streamed tool call:
//
//   - "approval": the call waits for a decision on Approval;
//   - "started": the call runs, in sandbox SandboxID if it needs one;
//   - "stdout", "stderr": output of a command, as Data, or as Base64 if the
//     bytes are not UTF-8;
//   - "end": the last event, with Result.
//
// Streamed output is for display; the result is authoritative. If the client reads too slowly,
// output is dropped, and Missed is the number of bytes dropped before this event.
type ToolEvent struct {
	Type      string      `json:"type" enum:"approval,started,stdout,stderr,end"`
	Approval  *Approval   `json:"approval,omitempty"`
	SandboxID string      `json:"sandbox_id,omitempty"`
	Data      string      `json:"data,omitempty"`
	Base64    string      `json:"base64,omitempty"`
	Missed    int64       `json:"missed,omitempty"`
	Result    *ToolResult `json:"result,omitempty"`
}
