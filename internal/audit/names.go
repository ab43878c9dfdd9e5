package audit

// TruncateName returns the first 256 bytes of a name that the caller chose.
func TruncateName(s string) string {
	const most = 256
	if len(s) > most {
		return s[:most]
	}
	return s
}
