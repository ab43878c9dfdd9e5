// Package signature checks that an image was signed with one of a set of
// public keys, in the form that cosign writes without a transparency log:
// "simple signing". The signature of the manifest sha256:X of a repository lies
// in that repository, under the tag sha256-X.sig, as a manifest whose layers
// are JSON payloads and carry the signatures as annotations.
//
// The package is pure: it is given bytes and keys. Keys are ECDSA (SHA-256,
// P-256 or greater), Ed25519 and RSA (PKCS #1 v1.5 with SHA-256, 2048 bits or
// more). Errors are of class PermissionDenied (not signed, wrongly signed) or
// InvalidArgument (keys).
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
)

const (
	// MediaType is that of a payload, Annotation where its signature is.
	MediaType  = "application/vnd.dev.cosign.simplesigning.v1+json"
	Annotation = "dev.cosignproject.cosign/signature"
	// Max is how many signatures of an image are looked at, MaxPayload how long a
	// payload may be.
	Max        = 64
	MaxPayload = 64 << 10
	kind       = "cosign container image signature"
	leastRSA   = 2048
)

// Tag is where the signatures of a manifest are.
func Tag(digest string) string { return strings.Replace(digest, ":", "-", 1) + ".sig" }

// Key is a public key.
type Key struct {
	// Name is for messages.
	Name   string
	public crypto.PublicKey
}

// ParseKey reads a public key in PEM.
func ParseKey(name string, raw []byte) (Key, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return Key{}, fmt.Errorf("key %s is no PEM: %w", name, errdefs.ErrInvalidArgument)
	}
	if strings.Contains(block.Type, "PRIVATE") {
		return Key{}, fmt.Errorf("key %s is a private key: give the public one: %w", name, errdefs.ErrInvalidArgument)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return Key{}, fmt.Errorf("key %s: %w: %w", name, err, errdefs.ErrInvalidArgument)
	}
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		if k.Curve.Params().BitSize < 256 {
			return Key{}, fmt.Errorf("key %s: curve %s is too weak: %w", name, k.Curve.Params().Name, errdefs.ErrInvalidArgument)
		}
	case *rsa.PublicKey:
		if k.N.BitLen() < leastRSA {
			return Key{}, fmt.Errorf("key %s: %d bits of RSA are too few: %w", name, k.N.BitLen(), errdefs.ErrInvalidArgument)
		}
	case ed25519.PublicKey:
	default:
		return Key{}, fmt.Errorf("key %s: %T is not supported, ECDSA, Ed25519 and RSA are: %w", name, public, errdefs.ErrInvalidArgument)
	}
	return Key{Name: name, public: public}, nil
}

// verifies says whether the key made a signature of payload.
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

// payload is what is signed.
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

// Verify says which of the keys made the signature (base64) of a payload, and
// checks that the payload is of the manifest with this digest in this
// repository. The signature is checked first: what was not signed is not read.
func Verify(keys []Key, raw []byte, signature string, image ref.Reference, digest string) (Key, error) {
	sig, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || len(sig) == 0 {
		return Key{}, denied("a signature is not base64")
	}
	for _, k := range keys {
		if !k.verifies(raw, sig) {
			continue
		}
		return k, check(raw, image, digest)
	}
	return Key{}, denied("a signature was made with none of the keys")
}

func check(raw []byte, image ref.Reference, digest string) error {
	var p payload
	if err := json.Unmarshal(raw, &p); err != nil {
		return denied("a payload that is signed is no JSON")
	}
	if p.Critical.Type != kind {
		return denied("what is signed is a %q and no image", clip(p.Critical.Type))
	}
	if p.Critical.Image.Digest != digest {
		return denied("what is signed is %s and not %s", clip(p.Critical.Image.Digest), digest)
	}
	named, err := ref.Parse(p.Critical.Identity.Reference)
	if err != nil || named.Name() != image.Name() {
		return denied("the signature is for %q and not for %s", clip(p.Critical.Identity.Reference), image.Name())
	}
	return nil
}

// None is the error for an image that carries no good signature; whys are what
// was wrong with those that it has.
func None(image ref.Reference, digest string, whys []error) error {
	if len(whys) == 0 {
		return denied("%s has no signature, and images.signatures asks for one", image.Pinned(digest))
	}
	const most = 3
	return fmt.Errorf("%s has no good signature: %w", image.Pinned(digest), errors.Join(whys[:min(len(whys), most)]...))
}

func denied(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrPermissionDenied)
}

func clip(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
