package v1

// WorkspaceResize sets the quota of a workspace, in bytes.
type WorkspaceResize struct {
	QuotaBytes int64 `json:"quota_bytes"`
}
