package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/bcrypt"
)

// Registry is a real registry on loopback, with TLS by its own authority and a login.
type Registry struct {
	// Host is "127.0.0.1:PORT".
	Host string
	// CA is the file of its authority; DockerConfig is the directory with its login.
	CA, DockerConfig string

	pool *x509.CertPool
}

// The login of a Registry.
const (
	registryUser   = "ann"
	registrySecret = "correct horse battery staple"
)

// StartRegistry starts a registry that runs until the test ends.
func StartRegistry(tb testing.TB) *Registry {
	tb.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		tb.Fatal("docker-registry is missing: run integration/scripts/deps.sh")
	}
	dir := TempDir(tb)
	r := &Registry{CA: filepath.Join(dir, "ca.pem"), DockerConfig: filepath.Join(dir, "docker"), pool: x509.NewCertPool()}
	r.certify(tb, dir)
	hash, err := bcrypt.GenerateFromPassword([]byte(registrySecret), bcrypt.MinCost)
	if err != nil {
		tb.Fatal(err)
	}
	WriteFile(tb, filepath.Join(dir, "htpasswd"), registryUser+":"+string(hash)+"\n")
	// Retry: another process may take the chosen free port first.
	for range 5 {
		if r.serve(tb, program, dir) {
			return r
		}
	}
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	tb.Fatalf("the registry does not start: %s", log)
	return nil
}

// serve starts the program on a free port and reports whether it answers there.
func (r *Registry) serve(tb testing.TB, program, dir string) bool {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	r.Host = l.Addr().String()
	l.Close()
	config := filepath.Join(dir, "config.yml")
	WriteFile(tb, config, fmt.Sprintf(`version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: %[1]s/data}}
auth: {htpasswd: {realm: test, path: %[1]s/htpasswd}}
http: {addr: "%[2]s", tls: {certificate: %[1]s/cert.pem, key: %[1]s/key.pem}}
`, dir, r.Host))
	r.Login(tb, r.Host)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, "serve", config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // the cleanup waits for it
		_ = cmd.Wait()
		close(ended)
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	answers, over := false, false
	Eventually(tb, Long, "the registry answers, or has ended", func() bool {
		select {
		case <-ended:
			over = true
		default:
		}
		// Check its certificate: another process may have taken the port.
		conn, err := tls.Dial("tcp", r.Host, &tls.Config{RootCAs: r.pool})
		if err == nil {
			conn.Close()
			answers = true
		}
		return answers || over
	})
	return answers
}

// Login adds a login to the registry under another address to DockerConfig.
func (r *Registry) Login(tb testing.TB, host string) {
	tb.Helper()
	if err := os.MkdirAll(r.DockerConfig, 0o700); err != nil {
		tb.Fatal(err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + registrySecret))
	WriteFile(tb, filepath.Join(r.DockerConfig, "config.json"), fmt.Sprintf(`{"auths":{%q:{"auth":%q},%q:{"auth":%q}}}`,
		r.Host, auth, host, auth))
}

// Environment returns the variables a process needs to pull from the registry.
func (r *Registry) Environment() []string {
	return []string{"SSL_CERT_FILE=" + r.CA, "DOCKER_CONFIG=" + r.DockerConfig}
}

// Push pushes the image of a docker-archive and returns its digest.
func (r *Registry) Push(tb testing.TB, archive, at string) string {
	tb.Helper()
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		tb.Fatal(err)
	}
	to, err := name.ParseReference(r.Host + "/" + at)
	if err != nil {
		tb.Fatal(err)
	}
	way := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.pool}}
	defer way.CloseIdleConnections()
	if err := remote.Write(to, img, remote.WithTransport(way),
		remote.WithAuth(&authn.Basic{Username: registryUser, Password: registrySecret})); err != nil {
		tb.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		tb.Fatal(err)
	}
	return digest.String()
}

// certify creates an authority and a certificate for 127.0.0.1.
func (r *Registry) certify(tb testing.TB, dir string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	WriteFile(tb, r.CA, string(public))
	WriteFile(tb, filepath.Join(dir, "cert.pem"), string(public))
	WriteFile(tb, filepath.Join(dir, "key.pem"),
		string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})))
	r.pool.AppendCertsFromPEM(public)
}
