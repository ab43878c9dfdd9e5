//go:build !faults

package volumes

// runChild does nothing: only tests with failpoints start children.
func runChild() {}
