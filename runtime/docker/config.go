package docker

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	// maxVolumes is the number of VOLUMEs that an image may declare, maxImageEnv the number of
	// variables. Each costs a mount or an entry in every sandbox.
	maxVolumes  = 32
	maxImageEnv = 1024
	// shadowOptions are those of the file system that covers an image's VOLUME: root may write a
	// little there, commands nothing.
	shadowOptions = "nosuid,nodev,noexec,size=64k,mode=0755"
)

// places is where the guest and the workspace come from: two host directories, or an engine volume.
type places struct {
	run, slot string
	volume    string
}

// seccompProfile returns one of our filters as an option of the engine.
func seccompProfile(filter func() ([]byte, error)) (string, error) {
	text, err := filter()
	if err != nil {
		return "", fmt.Errorf("docker: %w", err)
	}
	return "seccomp=" + string(text), nil
}

// configure returns what to request from the engine for a sandbox. It has no side effects; spec is
// valid and has its defaults.
func configure(spec runtime.Spec, img image, e engine, at places,
	seccomp string) (client.ContainerCreateOptions, error) {
	env, err := environment(img.env)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	tmpfs, shm := memoryFiles(spec, at)
	mounts := bindings(e, at, spec.Class)
	if err := shadow(tmpfs, mounts, img.volumes); err != nil {
		return client.ContainerCreateOptions{}, err
	}
	args := ocispec.Args(spec)
	labels := ocispec.Labels(spec)
	labels[labelMode], labels[labelScratch] = ModeLocal, strconv.FormatInt(spec.Limits.ScratchBytes, 10)
	if at.volume != "" {
		args = append(args, "--stdio")
		labels[labelMode] = ModeStdio
	}
	// An image may carry the label of helpers, as the image of a trial does. Override it, so that
	// no sandbox is swept.
	labels[labelClass], labels[labelHelper] = string(spec.Class.OrDefault()), ""
	none, never := []string{"NONE"}, 0
	return client.ContainerCreateOptions{
		Name: containerName(spec.ID),
		Config: &container.Config{
			Image: img.id, Hostname: ocispec.Hostname, User: "0:0", WorkingDir: "/",
			Entrypoint: args[:1], Cmd: args[1:], Env: env,
			Labels: labels, Healthcheck: &container.HealthConfig{Test: none},
			StopSignal: "SIGKILL", StopTimeout: &never, NetworkDisabled: true,
		},
		HostConfig: hostConfig(spec.Limits, e, tmpfs, shm, mounts, seccomp),
	}, nil
}

func hostConfig(l runtime.Limits, e engine, tmpfs map[string]string, shm int64, mounts []mount.Mount,
	seccomp string) *container.HostConfig {
	no, pids := false, l.Pids
	h := &container.HostConfig{
		NetworkMode: "none", IpcMode: container.IPCModePrivate,
		ReadonlyRootfs: true, Mounts: mounts, Tmpfs: tmpfs, ShmSize: shm,
		CapDrop: []string{"ALL"}, CapAdd: ocispec.Capabilities(),
		SecurityOpt: []string{"no-new-privileges", seccomp},
		// The engine's view of the cgroup tree is useless to the guest and describes the host.
		MaskedPaths: append(ocispec.MaskedPaths(), "/sys/fs/cgroup"), ReadonlyPaths: ocispec.ReadonlyPaths(),
		Sysctls:   ocispec.Sysctls(),
		LogConfig: container.LogConfig{Type: "none"}, Init: &no,
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		OomScoreAdj:   ocispec.OOMScoreAdj,
		Resources: container.Resources{
			Memory: l.MemoryBytes, MemorySwap: l.MemoryBytes, PidsLimit: &pids,
			NanoCPUs: int64(math.Round(l.CPUs * 1e9)), Ulimits: ulimits(ocispec.Rlimits(l)),
		},
	}
	if e.cgroupV2 {
		h.CgroupnsMode = container.CgroupnsModePrivate
	}
	return h
}

// ulimits returns the limits in the engine's form. An unlimited one is omitted: the engine may not
// be allowed to raise its own limit, which then applies.
func ulimits(limits []specs.POSIXRlimit) []*container.Ulimit {
	var out []*container.Ulimit
	for _, r := range limits {
		if r.Hard > math.MaxInt64 || r.Soft > math.MaxInt64 {
			continue
		}
		name := strings.ToLower(strings.TrimPrefix(r.Type, "RLIMIT_"))
		out = append(out, &container.Ulimit{Name: name, Soft: int64(r.Soft), Hard: int64(r.Hard)})
	}
	return out
}

// memoryFiles returns the file systems in memory, and the size of /dev/shm, which the engine itself
// mounts.
func memoryFiles(spec runtime.Spec, at places) (tmpfs map[string]string, shm int64) {
	tmpfs = map[string]string{}
	for _, t := range append(ocispec.Tmpfs(spec.Limits), ocispec.TemplateTmpfs(spec)...) {
		if t.Path == "/dev/shm" {
			shm = t.Bytes
			continue
		}
		tmpfs[t.Path] = strings.Join(t.Options(), ",")
	}
	if at.volume != "" || spec.Class == runtime.ClassGVisor {
		scratch := ocispec.Scratch(spec.Limits)
		tmpfs[scratch.Path] = strings.Join(scratch.Options(), ",")
	}
	return tmpfs, shm
}

func bindings(e engine, at places, class runtime.Class) []mount.Mount {
	if at.volume != "" {
		return []mount.Mount{{
			Type: mount.TypeVolume, Source: at.volume, Target: wire.RunDir, ReadOnly: true,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		}}
	}
	run := &mount.BindOptions{Propagation: mount.PropagationRSlave}
	// Mounts made in the directory later (the commands' cgroup) stay writable.
	run.ReadOnlyNonRecursive = apiAtLeast(e.api, apiReadOnlyNonRecursive)
	guest := mount.Mount{Type: mount.TypeBind, Source: at.run, Target: wire.RunDir, ReadOnly: true, BindOptions: run}
	if class == runtime.ClassGVisor {
		return []mount.Mount{guest}
	}
	return []mount.Mount{
		guest,
		{Type: mount.TypeBind, Source: at.slot, Target: wire.Workspace,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRSlave}},
	}
}

// environment returns the variables of PID 1. The engine adds those of the image that are missing
// here; a name without "=" suppresses one.
func environment(image []string) ([]string, error) {
	if len(image) > maxImageEnv {
		return nil, refused("the image sets %d environment variables: at most %d are undone", len(image), maxImageEnv)
	}
	ours := map[string]bool{}
	env := ocispec.Env()
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		ours[name] = true
	}
	for _, e := range image {
		name, _, _ := strings.Cut(e, "=")
		if !ours[name] && name != "" {
			ours[name] = true
			env = append(env, name)
		}
	}
	return env, nil
}

// shadow covers every VOLUME of the image that none of our mounts covers with a small file system,
// since the engine would put a writable directory of its disk there. It refuses a volume at a path
// where that is impossible.
func shadow(tmpfs map[string]string, mounts []mount.Mount, volumes []string) error {
	if len(volumes) > maxVolumes {
		return refused("the image declares %d volumes: at most %d are undone", len(volumes), maxVolumes)
	}
	ours := slices.Collect(maps.Keys(tmpfs))
	for _, m := range mounts {
		ours = append(ours, m.Target)
	}
	for _, v := range volumes {
		at := path.Clean(v)
		if slices.Contains(ours, at) {
			continue
		}
		for _, kept := range []string{"/proc", "/sys", "/dev", wire.RunDir, wire.Workspace} {
			if at == kept || strings.HasPrefix(at, kept+"/") {
				return refused("the image declares a volume at %q, below %s: use an image without it", v, kept)
			}
		}
		if !path.IsAbs(v) || at == "/" ||
			strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == ':' || r == ',' || r == 0x7f }) {
			return refused("the image declares a volume at %q, which cannot be undone: use an image without it", v)
		}
		tmpfs[at] = shadowOptions
	}
	return nil
}
