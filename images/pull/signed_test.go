package pull

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandbox-orchestrator/orchestrator/images/registry"
	"github.com/sandbox-orchestrator/orchestrator/images/signature"
)

// signer is a private key with its public key as configured.
type signer struct {
	private crypto.Signer
	signature.Key
}

func newSigner(tb testing.TB, name string, private crypto.Signer) signer {
	tb.Helper()
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		tb.Fatal(err)
	}
	k, err := signature.ParseKey(name, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	if err != nil {
		tb.Fatal(err)
	}
	return signer{private, k}
}

func signers(tb testing.TB) (all []signer) {
	tb.Helper()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	return []signer{newSigner(tb, "ec.pub", ec), newSigner(tb, "ed.pub", ed), newSigner(tb, "rsa.pub", rs)}
}

func (k signer) sign(tb testing.TB, payload []byte) string {
	tb.Helper()
	message, hash := payload, crypto.Hash(0)
	if _, ed := k.private.(ed25519.PrivateKey); !ed {
		sum := sha256.Sum256(payload)
		message, hash = sum[:], crypto.SHA256
	}
	sig, err := k.private.Sign(rand.Reader, message, hash)
	if err != nil {
		tb.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(sig)
}

func payload(repository, digest string) []byte {
	return fmt.Appendf(nil,
		`{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},`+
			`"type":"cosign container image signature"},"optional":null}`, repository, digest)
}

// attach stores signatures for a digest.
func (s *site) attach(tb testing.TB, repository, digest string, signed map[string][]byte) {
	tb.Helper()
	img := empty.Image
	for sig, raw := range signed {
		var err error
		img, err = mutate.Append(img, mutate.Addendum{Layer: static.NewLayer(raw, types.MediaType(signature.MediaType)),
			Annotations: map[string]string{signature.Annotation: sig}})
		if err != nil {
			tb.Fatal(err)
		}
	}
	at, err := name.ParseReference(s.host + "/" + repository + ":" + signature.Tag(digest))
	if err != nil {
		tb.Fatal(err)
	}
	if err := remote.Write(at, img); err != nil {
		tb.Fatal(err)
	}
	s.forget()
}

type signatureCase struct {
	signed func(repository, digest string) map[string][]byte
	want   string // "" means accepted
}

// signatureCases returns signatures of an image, by keys or by a stranger, with the expected error.
func signatureCases(t *testing.T, keys []signer, stranger signer) map[string]signatureCase {
	t.Helper()
	return map[string]signatureCase{
		"ECDSA": {func(r, d string) map[string][]byte {
			p := payload(r, d)
			return map[string][]byte{keys[0].sign(t, p): p}
		}, ""},
		"Ed25519": {func(r, d string) map[string][]byte {
			p := payload(r, d)
			return map[string][]byte{keys[1].sign(t, p): p}
		}, ""},
		"RSA": {func(r, d string) map[string][]byte {
			p := payload(r, d)
			return map[string][]byte{keys[2].sign(t, p): p}
		}, ""},
		"one of several": {func(r, d string) map[string][]byte {
			p := payload(r, d)
			return map[string][]byte{stranger.sign(t, p): p, "no base64!": p, keys[0].sign(t, p): p}
		}, ""},
		"a stranger's": {func(r, d string) map[string][]byte {
			p := payload(r, d)
			return map[string][]byte{stranger.sign(t, p): p}
		}, "none of the keys"},
		"another digest": {func(r, _ string) map[string][]byte {
			p := payload(r, "sha256:"+strings.Repeat("1", 64))
			return map[string][]byte{keys[0].sign(t, p): p}
		}, "signature is for sha256:1111"},
		"another repository": {func(r, d string) map[string][]byte {
			p := payload(r+"2", d)
			return map[string][]byte{keys[0].sign(t, p): p}
		}, "signature is for"},
		"another payload": {func(r, d string) map[string][]byte {
			return map[string][]byte{keys[0].sign(t, payload(r, "sha256:"+strings.Repeat("1", 64))): payload(r, d)}
		}, "none of the keys"},
		"no signatures in it": {func(string, string) map[string][]byte { return nil }, "has no signature"},
		"none":                {nil, "has no signature, but images.signatures requires one"},
	}
}

func TestSignatures(t *testing.T) {
	keys := signers(t)
	for name, c := range signatureCases(t, keys, signers(t)[0]) {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			img := image(t, layer(t, "f", name))
			at := s.push(t, "team/app:1", img)
			digest := digestOf(t, img)
			if c.signed != nil {
				s.attach(t, "team/app", digest, c.signed(s.host+"/team/app", digest))
			}
			w := newWorld(t, s, func(o *Options, _ *registry.Options) {
				for _, k := range keys {
					o.Keys = append(o.Keys, k.Key)
				}
			})
			got, err := w.pull(t, at)
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Pull = %+v, %v; want %q", got, err, c.want)
			}
			l, _ := img.Layers()
			path, _, _ := blobOf(t, l[0])
			if s.count(path) > 0 {
				t.Error("a layer was downloaded before the signature was checked, want none")
			}
		})
	}
}

// Either the index or the manifest for this host may be signed.
func TestSignatureOfAnIndex(t *testing.T) {
	k := signers(t)[0]
	for _, which := range []string{"index", "manifest"} {
		s := newSite(t)
		img := image(t, layer(t, "f", "x"))
		x := mutate.AppendManifests(empty.Index,
			mutate.IndexAddendum{Add: img,
				Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux",
					Architecture: newWorld(t, s, nil).store.Architecture()}}})
		at := s.pushIndex(t, "app", x)
		digest := digestOf(t, x)
		if which == "manifest" {
			digest = digestOf(t, img)
		}
		p := payload(s.host+"/app", digest)
		s.attach(t, "app", digest, map[string][]byte{k.sign(t, p): p})
		w := newWorld(t, s, func(o *Options, _ *registry.Options) { o.Keys = []signature.Key{k.Key} })
		if _, err := w.pull(t, at); err != nil {
			t.Errorf("pull of an image signed %s = %v, want no error", which, err)
		}
	}
}

// Only images in the list require a signature.
func TestSignedList(t *testing.T) {
	s := newSite(t)
	one, two := s.push(t, "team/app:1", image(t, layer(t, "f", "x"))),
		s.push(t, "other/app:1", image(t, layer(t, "f", "x")))
	w := newWorld(t, s, func(o *Options, _ *registry.Options) {
		o.Keys, o.Signed = []signature.Key{signers(t)[0].Key}, list(t, s.host+"/team/**")
	})
	if _, err := w.pull(t, one); !errdefs.IsPermissionDenied(err) {
		t.Errorf("pull of a listed image: %v, want PermissionDenied", err)
	}
	if _, err := w.pull(t, two); err != nil {
		t.Error(err)
	}
}

func TestParseKeyErrors(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(weak.Public())
	if err != nil {
		t.Fatal(err)
	}
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	private, _ := x509.MarshalPKCS8PrivateKey(ed)
	for want, raw := range map[string][]byte{
		"is not in PEM format": []byte("x"),
		"1024 bits":            pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}),
		"is a private key":     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	} {
		if _, err := signature.ParseKey("k", raw); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("ParseKey = %v, want %q", err, want)
		}
	}
}
