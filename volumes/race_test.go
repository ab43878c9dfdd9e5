//go:build race

package volumes

const raceEnabled = true
