package kubernetes

import (
	"fmt"
	"maps"
	"math"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	containerName = "sandbox"
	guestVolume   = "guest"
	// ownGuest is the guest in the guest's image.
	ownGuest = "/guest"
	// graceSeconds is how long a pod has between TERM and KILL. With zero, the API server would
	// forget the pod while its processes still run.
	graceSeconds = 1
	// diskBytes caps what a pod may store on its node: the guest and the log of its first process.
	diskBytes = 256 << 20
	// endFile receives the kubelet's termination message. It is in the guest's directory: by
	// default it would be a file on the node's disk that every command may fill.
	endFile = runtime.RunDir + "/end"
	// hostsFile is the sandbox's /etc/hosts in the guest's volume. The kubelet's own would be a
	// writable mount.
	hostsFile = "hosts"
)

// podOptions returns the options of a template's pods.
func (d *Driver) podOptions(template string) PodOptions {
	if o, ok := d.opts.Pods[template]; ok {
		return o
	}
	return d.opts.Pod
}

// podOf returns the pod of a sandbox. Its limits have their defaults.
func (d *Driver) podOf(spec runtime.Spec) *corev1.Pod {
	where := d.podOptions(spec.Template)
	no, yes := false, true
	grace, deadline, root := int64(graceSeconds), int64(d.opts.Deadline.Seconds()), int64(0)
	volumes, mounts := podVolumes(spec)
	volumes = append(volumes, volume(guestVolume, corev1.StorageMediumDefault, diskBytes))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(spec.ID), Namespace: d.opts.Namespace,
			Labels:      map[string]string{labelOwner: spec.Owner, labelID: spec.ID},
			Annotations: map[string]string{annotationTemplate: spec.Template, annotationBuild: spec.Build},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, ActiveDeadlineSeconds: &deadline,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, Hostname: ocispec.Hostname,
			DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}},
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: &root, RunAsGroup: &root, SeccompProfile: seccomp(d.seccompProfile(spec.Class))},
			Volumes:         volumes,
			InitContainers:  d.initContainers(spec, mounts),
			Containers: []corev1.Container{{
				Name: containerName, Image: spec.Image.Ref, ImagePullPolicy: corev1.PullPolicy(d.opts.PullPolicy),
				Command: d.command(spec, mounts), WorkingDir: "/", Resources: d.resources(caps(spec)),
				VolumeMounts: append(mounts, corev1.VolumeMount{Name: guestVolume, MountPath: runtime.RunDir, ReadOnly: true},
					corev1.VolumeMount{Name: guestVolume, MountPath: "/etc/hosts", SubPath: hostsFile, ReadOnly: true}),
				TerminationMessagePath: endFile, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: confined(capabilityNames()...),
			}},
			NodeSelector: where.NodeSelector, PriorityClassName: where.PriorityClass,
		},
	}
	maps.Copy(pod.Annotations, d.epochs())
	pod.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem = &yes
	d.setClass(pod, spec, where.RuntimeClass)
	if where.UserNamespaces {
		pod.Spec.HostUsers = &no
	}
	for _, t := range where.Tolerations {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect),
		})
	}
	for _, name := range where.ImagePullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return pod
}

// initContainers returns the step before the sandbox starts, which removes its network and installs
// its guest. It is one container: a kubelet takes up to a second to notice the end of each.
func (d *Driver) initContainers(spec runtime.Spec, mounts []corev1.VolumeMount) []corev1.Container {
	install := corev1.Container{
		Name: "install", Image: d.opts.GuestImage, ImagePullPolicy: corev1.PullPolicy(d.opts.PullPolicy),
		Resources: d.resources(caps(spec)), TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Command: []string{ownGuest, "install"}, SecurityContext: confined("CHOWN", "FOWNER"),
	}
	if d.opts.Network == NetworkStrip {
		install.Command = append(install.Command, "--isolate")
		install.SecurityContext = confined("CHOWN", "FOWNER", "NET_ADMIN")
	}
	for _, t := range writableFiles(spec) {
		install.Command = append(install.Command, "--dir", fmt.Sprintf("%s=%o:%d:%d", t.Path, t.Mode, t.UID, t.GID))
	}
	for _, m := range mounts {
		m.ReadOnly = false // to set owners
		install.VolumeMounts = append(install.VolumeMounts, m)
	}
	install.VolumeMounts = append(install.VolumeMounts, corev1.VolumeMount{Name: guestVolume, MountPath: runtime.RunDir})
	// The container runtime makes the file, so that it exists when the volume is mounted read-only.
	install.TerminationMessagePath = endFile
	return []corev1.Container{install}
}

// command returns the sandbox's first process: the guest's checks, the template's entrypoint and
// the guest.
func (d *Driver) command(spec runtime.Spec, mounts []corev1.VolumeMount) []string {
	args := append([]string{runtime.GuestPath, "pod"}, d.classCommand(spec)...)
	for _, e := range ocispec.Env() {
		args = append(args, "--env", e)
	}
	for _, m := range mounts {
		if !m.ReadOnly {
			args = append(args, "--writable", m.MountPath)
		}
	}
	args = append(args, "--writable", endFile, "--")
	args = append(args, ocispec.Args(spec)...)
	return append(args, "--stdio")
}

// writableFiles are the writable file systems, in mount order. All are in memory, except for the
// workspace of a sandbox with a volume claim.
func writableFiles(spec runtime.Spec) []ocispec.TmpfsMount {
	list := append(ocispec.Tmpfs(spec.Limits), ocispec.Scratch(spec.Limits))
	return append(list, ocispec.TemplateTmpfs(spec)...)
}

func podVolumes(spec runtime.Spec) ([]corev1.Volume, []corev1.VolumeMount) {
	files := writableFiles(spec)
	volumes := make([]corev1.Volume, 0, len(files))
	mounts := make([]corev1.VolumeMount, 0, len(files))
	for i, t := range files {
		if spec.Claim != nil && t.Path == runtime.WorkspaceDir {
			v, m := claimVolume(*spec.Claim)
			volumes, mounts = append(volumes, v), append(mounts, m)
			continue
		}
		name := "memory-" + strconv.Itoa(i)
		volumes = append(volumes, volume(name, corev1.StorageMediumMemory, t.Bytes))
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: path.Clean(t.Path)})
	}
	return volumes, mounts
}

func volume(name string, medium corev1.StorageMedium, bytes int64) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
		Medium: medium, SizeLimit: resource.NewQuantity(bytes, resource.BinarySI),
	}}}
}

// confined returns a security context with these capabilities only.
func confined(capabilities ...string) *corev1.SecurityContext {
	no := false
	s := &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, Privileged: &no,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	for _, c := range capabilities {
		s.Capabilities.Add = append(s.Capabilities.Add, corev1.Capability(c))
	}
	return s
}

// capabilityNames are the guest's capabilities in Kubernetes' form.
func capabilityNames() []string {
	out := make([]string, 0, len(ocispec.Capabilities()))
	for _, c := range ocispec.Capabilities() {
		out = append(out, strings.TrimPrefix(c, "CAP_"))
	}
	return out
}

func seccomp(file string) *corev1.SeccompProfile {
	if file == "" {
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &file}
}

// resources returns the caps of a sandbox. Requests equal limits, except for CPU if that is
// configured.
func (d *Driver) resources(l runtime.Limits) corev1.ResourceRequirements {
	cpu := func(cores float64) resource.Quantity {
		return *resource.NewMilliQuantity(int64(math.Round(cores*1000)), resource.DecimalSI)
	}
	limits := corev1.ResourceList{
		corev1.ResourceCPU: cpu(l.CPUs), corev1.ResourceMemory: *resource.NewQuantity(l.MemoryBytes, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(diskBytes, resource.BinarySI),
	}
	requests := limits.DeepCopy()
	if d.opts.CPURequest > 0 {
		requests[corev1.ResourceCPU] = cpu(min(d.opts.CPURequest, l.CPUs))
	}
	return corev1.ResourceRequirements{Limits: limits, Requests: requests}
}
