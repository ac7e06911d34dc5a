package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"agentsh/controller/sandbox"
)

// What a pod of a sandbox has.
const (
	containerName = "sandbox"
	dirInside     = "/.agentsh" // of the program
	program       = dirInside + "/agentsh"
	volumeName    = "agentsh"
	inProgram     = "/usr/bin/agentsh" // in the image that has the program
)

// Seccomp profiles that packaging/kubernetes installs below the kubelet's directory.
const (
	seccompUser = "agentsh/seccomp-user.json"
	seccompRoot = "agentsh/seccomp-root.json"
)

// profileDefault and profileNone are the profiles that are no files.
const (
	profileDefault = "RuntimeDefault"
	profileNone    = "Unconfined"
)

// waits is the shell script that waits for the program, and becomes it. It ends after as
// many tenths of a second as its first argument says.
const waits = `n=0; until [ -x "$2" ]; do n=$((n+1)); [ "$n" -le "$1" ] || exit 1; sleep 0.1 2>/dev/null || { sleep 1; n=$((n+9)); }; done
exec "$2" serve --container "$3"`

// user is a numeric user of a pod.
type user struct{ uid, gid int64 }

// userOf parses a user of the harness. Without one it is not root: what the image says is
// known to the node alone.
func userOf(text string) (user, error) {
	if text == "" {
		return user{1000, 1000}, nil
	}
	id, group, has := strings.Cut(text, ":")
	if !has {
		group = id
	}
	uid, err := strconv.ParseUint(id, 10, 31)
	gid, failed := strconv.ParseUint(group, 10, 31)
	if err != nil || failed != nil {
		return user{}, fmt.Errorf("container.user: %s: a pod has no user by name: write UID or UID:GID", text)
	}
	return user{int64(uid), int64(gid)}, nil
}

// template is a pod without its name.
type template struct {
	labels, annotations map[string]string
	spec                core.PodSpec
}

// describe describes the pod of a sandbox.
func describe(s sandbox.Container, labels map[string]string, lease time.Duration) (template, error) {
	k := s.Cluster
	who, err := userOf(s.User)
	if err != nil {
		return template{}, err
	}
	limits, requests, err := resources(s)
	if err != nil {
		return template{}, err
	}
	no, grace := false, int64(graceTime/time.Second)
	main := core.Container{
		Name: containerName, Image: s.Image.ID, ImagePullPolicy: core.PullPolicy(cmp.Or(k.Program.PullPolicy, string(core.PullIfNotPresent))),
		WorkingDir: "/", Resources: core.ResourceRequirements{Limits: limits, Requests: requests},
		SecurityContext: secure(k, who),
		VolumeMounts:    []core.VolumeMount{{Name: volumeName, MountPath: dirInside, ReadOnly: k.Program.Image != ""}},
	}
	pod := core.PodSpec{
		RestartPolicy: core.RestartPolicyNever, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		ServiceAccountName: k.Account, TerminationGracePeriodSeconds: &grace,
		NodeSelector: k.Place.NodeSelector, Tolerations: tolerations(k.Place.Tolerations), PriorityClassName: k.Place.PriorityClass,
		SecurityContext: &core.PodSecurityContext{FSGroup: &who.gid},
		Volumes:         []core.Volume{{Name: volumeName, VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}}},
	}
	if k.Place.RuntimeClass != "" {
		pod.RuntimeClassName = &k.Place.RuntimeClass
	}
	if k.Times.Most > 0 {
		seconds := int64(k.Times.Most / time.Second)
		pod.ActiveDeadlineSeconds = &seconds
	}
	if !k.Shared {
		pod.HostUsers = &no
	}
	for _, name := range k.PullSecrets {
		pod.ImagePullSecrets = append(pod.ImagePullSecrets, core.LocalObjectReference{Name: name})
	}
	if k.Program.Image != "" {
		main.Command = []string{program, "serve", "--container", lease.String()}
		pod.InitContainers = []core.Container{copyProgram(k, main)}
	} else {
		tenths := strconv.Itoa(int((startOf(k.Times) + lease) / (time.Second / 10)))
		main.Command = []string{"/bin/sh", "-c", waits, "agentsh", tenths, program, lease.String()}
	}
	addMounts(&pod, &main, s.Mounts)
	pod.Containers = []core.Container{main}
	all := maps.Clone(k.Labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, labels)
	return template{all, maps.Clone(k.Annotations), pod}, nil
}

// graceTime is the time that the program has for its end when its pod is deleted.
const graceTime = 5 * time.Second

// copyProgram is the init container that puts the program into the pod. The image with the
// program needs no shell.
func copyProgram(k sandbox.Cluster, main core.Container) core.Container {
	return core.Container{
		Name: "agentsh", Image: k.Program.Image, ImagePullPolicy: main.ImagePullPolicy, WorkingDir: "/",
		Command:         []string{inProgram, "copy-self", program},
		SecurityContext: main.SecurityContext, Resources: main.Resources,
		VolumeMounts: []core.VolumeMount{{Name: volumeName, MountPath: dirInside}},
	}
}

// secure sets what a whole session needs, and nothing more: doc/platforms/kubernetes.md.
func secure(k sandbox.Cluster, who user) *core.SecurityContext {
	yes, no, isRoot := true, false, who.uid == 0
	out := &core.SecurityContext{
		RunAsUser: &who.uid, RunAsGroup: &who.gid, AllowPrivilegeEscalation: &no,
		Capabilities:   &core.Capabilities{Drop: []core.Capability{"ALL"}},
		SeccompProfile: seccompOf(k.Seccomp, isRoot), AppArmorProfile: apparmorOf(k.AppArmor),
	}
	if !isRoot {
		out.RunAsNonRoot = &yes
	} else {
		out.AllowPrivilegeEscalation = nil // a capability implies it
		out.Capabilities.Add = []core.Capability{
			"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "NET_BIND_SERVICE", // the supervisor's; a session's name server is at port 53
			"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL", "SYS_CHROOT", "FSETID", "SETPCAP",
		}
	}
	if !k.Shared {
		unmasked := core.UnmaskedProcMount
		out.ProcMount = &unmasked
	}
	return out
}

func seccompOf(name string, root bool) *core.SeccompProfile {
	if name == profileDefault || name == profileNone {
		return &core.SeccompProfile{Type: core.SeccompProfileType(name)}
	}
	if name == "" {
		if name = seccompUser; root {
			name = seccompRoot
		}
	}
	return &core.SeccompProfile{Type: core.SeccompProfileTypeLocalhost, LocalhostProfile: &name}
}

func apparmorOf(name string) *core.AppArmorProfile {
	switch name {
	case "":
		return nil
	case profileDefault, profileNone:
		return &core.AppArmorProfile{Type: core.AppArmorProfileType(name)}
	}
	return &core.AppArmorProfile{Type: core.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
}

// resources are the limits of a container and what the scheduler reserves.
func resources(s sandbox.Container) (limits, requests core.ResourceList, err error) {
	limits, requests = core.ResourceList{}, core.ResourceList{}
	mebi := func(n int64) resource.Quantity { return *resource.NewQuantity(n<<20, resource.BinarySI) }
	milli := func(cpus float64) resource.Quantity {
		return *resource.NewMilliQuantity(int64(cpus*1000), resource.DecimalSI)
	}
	if s.MemoryMB > 0 {
		limits[core.ResourceMemory] = mebi(s.MemoryMB)
	}
	if s.CPUs > 0 {
		limits[core.ResourceCPU] = milli(s.CPUs)
	}
	if s.DiskMB > 0 {
		limits[core.ResourceEphemeralStorage] = mebi(s.DiskMB)
	}
	if n := s.Cluster.Requests.MemoryMB; n > 0 {
		requests[core.ResourceMemory] = mebi(n)
	}
	if n := s.Cluster.Requests.CPUs; n > 0 {
		requests[core.ResourceCPU] = milli(n)
	}
	if name := s.Cluster.FUSEDevice; name != "" {
		limits[core.ResourceName(name)] = *resource.NewQuantity(1, resource.DecimalSI)
	}
	if r := s.Cluster.Requests; s.MemoryMB > 0 && r.MemoryMB > s.MemoryMB || s.CPUs > 0 && r.CPUs > s.CPUs {
		err = fmt.Errorf("kubernetes.requests is more than the limits of container")
	}
	return limits, requests, err
}

func tolerations(list []sandbox.Toleration) []core.Toleration {
	var out []core.Toleration
	for _, t := range list {
		c := core.Toleration{
			Key: t.Key, Operator: core.TolerationOperator(t.Operator), Value: t.Value, Effect: core.TaintEffect(t.Effect),
		}
		if t.Seconds > 0 {
			c.TolerationSeconds = &t.Seconds
		}
		if t.Key == "" {
			c.Operator = core.TolerationOpExists // the only one without a key
		}
		out = append(out, c)
	}
	return out
}

// addMounts adds the claims on volumes.
func addMounts(pod *core.PodSpec, main *core.Container, mounts []sandbox.Mount) {
	names := map[string]string{} // of volumes, by claim
	for _, m := range mounts {
		name, known := names[m.Source]
		if !known {
			name = "claim-" + strconv.Itoa(len(names))
			names[m.Source] = name
			pod.Volumes = append(pod.Volumes, core.Volume{Name: name, VolumeSource: core.VolumeSource{
				PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: m.Source},
			}})
		}
		main.VolumeMounts = append(main.VolumeMounts, core.VolumeMount{Name: name, MountPath: m.Target, ReadOnly: !m.Writable})
	}
}

// checkMounts rejects mounts that a pod of its own cannot have.
func checkMounts(mounts []sandbox.Mount) error {
	for _, m := range mounts {
		if path.IsAbs(m.Source) {
			return fmt.Errorf("container.mounts: %s is a directory of a node: name a PersistentVolumeClaim of the namespace", m.Source)
		}
		target := path.Clean(m.Target)
		for _, own := range []string{"/proc", "/sys", "/dev", "/sandbox", dirInside, "/etc/agentsh", "/var/tmp"} {
			if target == "/" || target == own || strings.HasPrefix(target, own+"/") {
				return fmt.Errorf("container.mounts: target %s: it has files of the sandbox itself: take another", m.Target)
			}
		}
	}
	return nil
}

// object is the metadata of an object of a run.
func (t template) object(name string) meta.ObjectMeta {
	return meta.ObjectMeta{Name: name, Labels: t.labels, Annotations: t.annotations}
}
