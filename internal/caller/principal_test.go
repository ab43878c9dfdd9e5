package caller

import "testing"

func TestIdempotencyKeyHasNoControlCharacters(t *testing.T) {
	for key, ok := range map[string]bool{"": true, "a-1 ü": true, "\x00space": false, "a\tb": false, "a\u0085": false} {
		if err := (Principal{Caller: "ann", Key: key}).Validate(); (err == nil) != ok {
			t.Errorf("Validate(key %q) = %v, want valid %t", key, err, ok)
		}
	}
}
