package kubernetes

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestTokenFileIsReadForEachRequest(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		_, _ = w.Write([]byte(`{"gitVersion":"v1"}`))
	}))
	defer server.Close()
	token, kubeconfig := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "kubeconfig")
	replace := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace("first\n")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: server.URL, CertificateAuthorityData: authority}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {TokenFile: token}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config, err := loadConfig(kubeconfig, "")
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAPI(config, "default")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"first", "second"} {
		replace(want)
		if _, err := a.serverVersion(t.Context()); err != nil {
			t.Fatal(err)
		}
		if header := <-got; header != "Bearer "+want {
			t.Errorf("Authorization = %q, want the token %q", header, want)
		}
	}
	replace("\n")
	if _, err := a.serverVersion(t.Context()); err == nil {
		t.Errorf("a request with an empty file succeeded with Authorization %q, want an error", <-got)
	}
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	if _, err := a.serverVersion(t.Context()); err == nil {
		t.Error("a request without the file succeeded")
	}
}
