package v1

// WorkspaceResize changes what a workspace holds at most.
type WorkspaceResize struct {
	QuotaBytes int64 `json:"quota_bytes"`
}
