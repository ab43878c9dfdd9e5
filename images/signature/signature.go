// Package signature checks that an image was signed with one of a set of public keys. It supports
// the "simple signing" format of cosign without a transparency log: the signatures of manifest
// sha256:X are in the same repository under the tag sha256-X.sig. That manifest has JSON payloads
// as layers, with the signatures as annotations.
//
// The package does no I/O. Keys are ECDSA (SHA-256, P-256 or larger), Ed25519 and RSA (PKCS #1 v1.5
// with SHA-256, at least 2048 bits). Error classes are PermissionDenied (no signature, or an
// invalid one) and InvalidArgument (keys).
package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

const (
	// MediaType is the type of a payload. Annotation is the key of its signature.
	MediaType  = "application/vnd.dev.cosign.simplesigning.v1+json"
	Annotation = "dev.cosignproject.cosign/signature"
	// Max is the maximum number of signatures checked per image. MaxPayload is the maximum size of
	// a payload in bytes.
	Max        = 64
	MaxPayload = 64 << 10
	kind       = "cosign container image signature"
	leastRSA   = 2048
)

// Tag returns the tag of the signatures for a manifest digest.
func Tag(digest string) string { return strings.Replace(digest, ":", "-", 1) + ".sig" }

// Key is a public key.
type Key struct {
	// Name is used in messages.
	Name   string
	public crypto.PublicKey
}

// ParseKey parses a public key in PEM format.
func ParseKey(name string, raw []byte) (Key, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return Key{}, fmt.Errorf("key %s is not in PEM format: %w", name, errdefs.ErrInvalidArgument)
	}
	if strings.Contains(block.Type, "PRIVATE") {
		return Key{}, fmt.Errorf("key %s is a private key: use the public key: %w", name, errdefs.ErrInvalidArgument)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return Key{}, fmt.Errorf("key %s: %w: %w", name, err, errdefs.ErrInvalidArgument)
	}
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		if k.Curve.Params().BitSize < 256 {
			return Key{}, fmt.Errorf("key %s: curve %s is too weak: %w", name, k.Curve.Params().Name,
				errdefs.ErrInvalidArgument)
		}
	case *rsa.PublicKey:
		if k.N.BitLen() < leastRSA {
			return Key{}, fmt.Errorf("key %s: RSA key of %d bits is too short: %w", name, k.N.BitLen(),
				errdefs.ErrInvalidArgument)
		}
	case ed25519.PublicKey:
	default:
		return Key{}, fmt.Errorf("key %s: unsupported type %T: use ECDSA, Ed25519 or RSA: %w", name, public,
			errdefs.ErrInvalidArgument)
	}
	return Key{Name: name, public: public}, nil
}

// verifies reports whether the signature of payload was made with the key.
func (k Key) verifies(payload, signature []byte) bool {
	sum := sha256.Sum256(payload)
	switch public := k.public.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(public, sum[:], signature)
	case ed25519.PublicKey:
		return ed25519.Verify(public, payload, signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, sum[:], signature) == nil
	}
	return false
}

// payload is the signed document.
type payload struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
}

// Verify returns the key that made the base64 signature of a payload. The payload must be for this
// digest in this repository. The signature is checked before the payload is parsed.
func Verify(keys []Key, raw []byte, signature string, image ref.Reference, digest string) (Key, error) {
	sig, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || len(sig) == 0 {
		return Key{}, denied("signature is not valid base64")
	}
	for _, k := range keys {
		if !k.verifies(raw, sig) {
			continue
		}
		return k, check(raw, image, digest)
	}
	return Key{}, denied("signature matches none of the keys")
}

func check(raw []byte, image ref.Reference, digest string) error {
	var p payload
	if err := json.Unmarshal(raw, &p); err != nil {
		return denied("signed payload is not valid JSON")
	}
	if p.Critical.Type != kind {
		return denied("signed payload has type %q, want an image", clip.Message(p.Critical.Type))
	}
	if p.Critical.Image.Digest != digest {
		return denied("signature is for %s, want %s", clip.Message(p.Critical.Image.Digest), digest)
	}
	named, err := ref.Parse(p.Critical.Identity.Reference)
	if err != nil || named.Name() != image.Name() {
		return denied("signature is for %q, want %s", clip.Message(p.Critical.Identity.Reference), image.Name())
	}
	return nil
}

// Missing returns the error for an image without a valid signature. reasons tell why the existing
// signatures are invalid.
func Missing(image ref.Reference, digest string, reasons []error) error {
	if len(reasons) == 0 {
		return denied("%s has no signature, but images.signatures requires one", image.Pinned(digest))
	}
	const most = 3
	return fmt.Errorf("%s has no valid signature: %w", image.Pinned(digest),
		errors.Join(reasons[:min(len(reasons), most)]...))
}

func denied(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrPermissionDenied)
}
