//go:build kubernetes

package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
)

// postTo creates an object of any API group and returns the answer.
func postTo(t *testing.T, a *api, path, body string) []byte {
	t.Helper()
	got, err := a.core.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).
		Do(bounded(t)).Raw()
	if err != nil {
		t.Fatalf("POST %s: %v: %s", path, err, got)
	}
	return got
}

// newToken returns a token of a service account. The API server accepts it while a secret of this
// name exists.
func newToken(t *testing.T, a *api, namespace, account, secret string) string {
	t.Helper()
	to := "/api/v1/namespaces/" + namespace
	var made struct{ Metadata struct{ UID string } }
	got := postTo(t, a, to+"/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"`+secret+`"}}`)
	if err := json.Unmarshal(got, &made); err != nil {
		t.Fatal(err)
	}
	var request struct{ Status struct{ Token string } }
	got = postTo(t, a, to+"/serviceaccounts/"+account+"/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest",
		"spec":{"boundObjectRef":{"apiVersion":"v1","kind":"Secret","name":"`+secret+`","uid":"`+made.Metadata.UID+`"}}}`)
	if err := json.Unmarshal(got, &request); err != nil || request.Status.Token == "" {
		t.Fatalf("TokenRequest = %s, %v; want a token", got, err)
	}
	return request.Status.Token
}

// revoke deletes the secret of a token and waits until the API server refuses the token.
func revoke(t *testing.T, a *api, namespace, secret, token string) {
	t.Helper()
	if err := a.core.Delete().Namespace(namespace).Resource("secrets").Name(secret).Do(bounded(t)).Error(); err != nil {
		t.Fatal(err)
	}
	config, err := loadConfig(given(t, "KUBECONFIG"), "")
	if err != nil {
		t.Fatal(err)
	}
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	old, err := newAPI(config, namespace)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if _, err = old.serverVersion(bounded(t)); apierrors.IsUnauthorized(err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("request with a revoked token: %v, want Unauthorized", err)
		}
	}
}

// TestReplacedTokenIsUsedAtOnce replaces the token in a file and has the old one refused. Work
// continues over a new connection, and a new sandbox starts.
func TestReplacedTokenIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	const account = "rotating"
	h, kubeconfig := newHole(t)
	o := options(t, newNamespace(t, "baseline"))
	a := admin(t)
	postTo(t, a, "/api/v1/namespaces/"+o.Namespace+"/serviceaccounts",
		`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"`+account+`"}}`)
	grantPods(t, o.Namespace, "system:serviceaccount:"+o.Namespace+":"+account)
	first, second := newToken(t, a, o.Namespace, account, "first"), newToken(t, a, o.Namespace, account, "second")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(first+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{TokenFile: file}
	o.Kubeconfig = write(t, config)
	d := opened(t, o)
	w := beginWork(t, start(t, d, specOf(t)))
	next := file + ".next"
	if err := os.WriteFile(next, []byte(second+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
	revoke(t, a, o.Namespace, "first", first)
	h.cut(0)
	if _, err := guest.New(start(t, d, specOf(t))).Ping(bounded(t)); err != nil {
		t.Errorf("Ping of a sandbox that was created with the new token: %v", err)
	}
	if err := w.finish(t); err != nil {
		t.Errorf("work during the replacement of the token: %v", err)
	}
	// A token that is refused, without another one, is an error of its class. The sandbox continues.
	revoke(t, a, o.Namespace, "second", second)
	if _, err := d.Create(bounded(t), specOf(t)); !errdefs.IsUnauthorized(err) {
		t.Errorf("Create with a revoked token: %v, want Unauthenticated", err)
	}
	if _, err := w.c.Ping(bounded(t)); err != nil {
		t.Errorf("Ping with a revoked token: %v", err)
	}
	third := newToken(t, a, o.Namespace, account, "third") // for the removals
	if err := os.WriteFile(file, []byte(third), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestWebhookThatRefusesPodsIsNamed has a webhook of the cluster deny pods, and then not answer.
func TestWebhookThatRefusesPodsIsNamed(t *testing.T) {
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	a := admin(t)
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct{ Request struct{ UID string } }
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":false,
			"status":{"message":"no sandboxes on Mondays"}}}`, review.Request.UID)
	}))
	defer webhook.Close()
	authority, err := json.Marshal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}))
	if err != nil {
		t.Fatal(err)
	}
	const to = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	name := o.Namespace + ".example.com"
	postTo(t, a, to, `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration",
		"metadata":{"name":"`+name+`"},"webhooks":[{"name":"`+name+`","admissionReviewVersions":["v1"],"sideEffects":"None",
		"failurePolicy":"Fail","timeoutSeconds":5,"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"`+o.Namespace+`"}},
		"clientConfig":{"url":"`+webhook.URL+`","caBundle":`+string(authority)+`},
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]}]}`)
	t.Cleanup(func() {
		if err := a.core.Delete().AbsPath(to, name).Do(context.Background()).Error(); err != nil {
			t.Error(err)
		}
	})
	d := opened(t, o)
	refused := func(is func(error) bool, cause string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			began := time.Now()
			spec := specOf(t)
			_, err := d.Create(bounded(t), spec)
			if took := time.Since(began); took > 2*postTime {
				t.Errorf("Create was refused after %s, want at most %s", took, 2*postTime)
			}
			if is(err) && strings.Contains(err.Error(), name) && strings.Contains(err.Error(), cause) {
				return
			}
			// The API server may not have seen the webhook yet.
			if err != nil || time.Now().After(end) {
				t.Fatalf("Create = %v, want the webhook's name and %q", err, cause)
			}
			if err := d.Remove(bounded(t), spec.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	refused(errdefs.IsFailedPrecondition, "no sandboxes on Mondays")
	webhook.Close()
	refused(errdefs.IsUnavailable, "connection refused")
	if found, err := d.List(bounded(t), specOf(t).Owner); err != nil || len(found) > 0 {
		t.Errorf("List = %v, %v; want none", found, err)
	}
}

// skewed is the way to the API server of a process whose clock is ahead: it moves the times in
// Leases that the process writes, and moves those that it reads back.
type skewed struct {
	http.RoundTripper
	ahead time.Duration
}

// RoundTrip implements http.RoundTripper.
func (s skewed) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.Path, "/leases") {
		return s.RoundTripper.RoundTrip(r)
	}
	if r.Body != nil {
		r = r.Clone(r.Context())
		if err := move(&r.Body, &r.ContentLength, s.ahead); err != nil {
			return nil, err
		}
	}
	resp, err := s.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode < http.StatusMultipleChoices {
		err = move(&resp.Body, &resp.ContentLength, -s.ahead)
	}
	return resp, err
}

// move replaces a body with a Lease whose times are later.
func move(body *io.ReadCloser, length *int64, by time.Duration) error {
	text, err := io.ReadAll(*body)
	if err != nil {
		return err
	}
	var lease coordinationv1.Lease
	if err := json.Unmarshal(text, &lease); err != nil {
		return err
	}
	if at := lease.Spec.AcquireTime; at != nil {
		at.Time = at.Add(by)
	}
	if at := lease.Spec.RenewTime; at != nil {
		at.Time = at.Add(by)
	}
	if text, err = json.Marshal(lease); err != nil {
		return err
	}
	*body, *length = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return nil
}

// TestSkewedClocksShareOneLease lets processes with clocks up to two minutes apart compete for a
// real Lease. None becomes active before the Lease of the one before has ended.
func TestSkewedClocksShareOneLease(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t, "baseline")
	candidateAhead := func(ahead time.Duration) (*Candidate, chan error) {
		t.Helper()
		config, err := loadConfig(given(t, "KUBECONFIG"), "")
		if err != nil {
			t.Fatal(err)
		}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return skewed{next, ahead} })
		lost := make(chan error, 1)
		c, err := newCandidate(bounded(t), config, ElectionOptions{
			Namespace: namespace, Owner: "skewed", Lost: func(err error) { lost <- err },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, lost
	}
	active, lost := candidateAhead(0)
	epoch, err := active.Acquire(bounded(t), none)
	if err != nil {
		t.Fatal(err)
	}
	for _, ahead := range []time.Duration{time.Minute, -time.Minute} {
		next, nextLost := candidateAhead(ahead)
		waits, began := make(chan string, 1), make(chan time.Time, 1)
		acquired := make(chan error, 1)
		var later int64
		go func() {
			var err error
			later, err = next.Acquire(bounded(t), func(holder string) { waits <- holder })
			began <- time.Now()
			acquired <- err
		}()
		if holder := <-waits; holder != active.lock.identity {
			t.Errorf("holder = %q, want %q", holder, active.lock.identity)
		}
		// The active one renews for longer than a Lease lasts.
		select {
		case <-time.After(2 * leaseTime):
		case <-began:
			t.Fatalf("a process whose clock is %s ahead became active beside another one", ahead)
		case err := <-lost:
			t.Fatalf("the active process lost the Lease: %v", err)
		}
		active.cancel() // a crash: it renews no more and does not release
		active.run.Wait()
		crashed := time.Now()
		if err := <-acquired; err != nil {
			t.Fatal(err)
		}
		if after := (<-began).Sub(crashed); after < leaseTime-2*retryTime-requestTime {
			t.Errorf("active %s after the crash, want the end of a Lease of %s", after, leaseTime)
		}
		if later <= epoch {
			t.Errorf("epoch = %d after %d, want a larger one", later, epoch)
		}
		active, lost, epoch = next, nextLost, later
	}
}
