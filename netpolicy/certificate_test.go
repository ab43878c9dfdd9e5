package netpolicy

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"math/big"
	"testing"
	"time"
)

// certificate returns a self-signed certificate for names below .test.
func certificate(tb testing.TB) tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"*.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// echConfig returns a list with one configuration for Encrypted Client Hello, which lets a client
// hide its server name behind a public one.
func echConfig(tb testing.TB) []byte {
	tb.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	u16 := func(b []byte, n int) []byte { return binary.BigEndian.AppendUint16(b, uint16(n)) }
	public := key.PublicKey().Bytes()
	body := []byte{7}      // id
	body = u16(body, 0x20) // DHKEM(X25519, HKDF-SHA256)
	body = append(u16(body, len(public)), public...)
	body = u16(u16(u16(body, 4), 1), 1) // HKDF-SHA256, AES-128-GCM
	body = append(append(body, 32, 6), "a.test"...)
	body = u16(body, 0) // no extensions
	one := append(u16(u16(nil, 0xfe0d), len(body)), body...)
	return append(u16(nil, len(one)), one...)
}
