package kubernetes

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// noUserNamespace returns the error of a cluster that cannot run a pod in a user namespace.
func noUserNamespace(why string) error {
	return refused(
		"this cluster cannot run pods in a user namespace: %s: "+
			"use Kubernetes 1.33 with containerd 2, or set kubernetes.pod.user_namespaces to false",
		why,
	)
}

// checkUserNamespace returns an error if a user namespace was asked for and the API server dropped
// the field, as one without the feature does.
func checkUserNamespace(asked, got *corev1.Pod) error {
	if a, g := asked.Spec.HostUsers, got.Spec.HostUsers; a != nil && !*a && (g == nil || *g) {
		return noUserNamespace("the API server dropped hostUsers: false")
	}
	return nil
}

// refusesUserNamespace reports whether a kubelet's message about a pod that cannot be set up is
// about its user namespace. A later attempt fails as well.
func refusesUserNamespace(text string) bool {
	for _, words := range []string{"user namespace", "userns", "hostUsers", "idmap"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}
