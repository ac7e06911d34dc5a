package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"agentsh/controller/sandbox"
	"agentsh/internal/lazy"
)

// list joins names.
func list(names []string) string { return strings.Join(names, ", ") }

// digestOf returns the digest at the end of the name of an image; empty: it has none.
func digestOf(name string) string {
	if i := strings.LastIndex(name, "sha256:"); i >= 0 {
		return name[i:]
	}
	return ""
}

// explain is the error of a request to the API server, with what to do about it.
func (b *Backend) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	end := &sandbox.End{Text: what + ": " + err.Error(), Err: err}
	text := err.Error()
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(text, "exceeded quota"):
		end.Kind, end.Hint = sandbox.EndQuota, "wait for other runs, lower container.memory_mb and cpus, or have the ResourceQuota raised"
	case apierrors.IsForbidden(err) && (strings.Contains(text, "failed quota") || strings.Contains(text, "must specify")):
		end.Kind, end.Hint = sandbox.EndQuota, "the namespace has a ResourceQuota: set container.memory_mb and cpus"
	case apierrors.IsForbidden(err) && strings.Contains(text, "violates PodSecurity"):
		end.Kind = sandbox.EndRefused
		end.Hint = "label the namespace pod-security.kubernetes.io/enforce=baseline, before Kubernetes 1.35 and for " +
			"container.user 0 privileged: see packaging/kubernetes"
	case apierrors.IsForbidden(err) && strings.Contains(text, "maximum") && strings.Contains(text, "usage per"):
		end.Kind, end.Hint = sandbox.EndQuota, "the namespace has a LimitRange: lower container.memory_mb and cpus"
	case apierrors.IsForbidden(err):
		end.Kind, end.Hint = sandbox.EndRefused, "have an administrator apply packaging/kubernetes and bind its Role to this user"
	case apierrors.IsUnauthorized(err):
		end.Kind, end.Hint = sandbox.EndRefused, "log in to the cluster again: try 'kubectl auth whoami'"
	case apierrors.IsNotFound(err) && strings.Contains(text, "namespaces"):
		end.Kind, end.Hint = sandbox.EndRefused, "make the namespace, or name another: --connect namespace:NAME"
	case apierrors.IsAlreadyExists(err):
		end.Kind, end.Hint = sandbox.EndRefused, "an earlier run has the name: 'agentctl gc --backend kubernetes' removes it"
	case apierrors.IsInvalid(err) && strings.Contains(text, "procMount"):
		end.Kind = sandbox.EndRefused
		end.Hint = "the cluster has no procMount for pods: write kubernetes: {user_namespace: false} and see doc/platforms/kubernetes.md"
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		end.Kind = sandbox.EndRefused
	case isAway(err):
		end.Kind, end.Hint = sandbox.EndUnreachable, "try 'kubectl version'; --connect context:NAME names another cluster"
		end.Text = fmt.Sprintf("%s: the API server at %s does not answer: %s", what, b.cluster.rest.Host, innermost(err))
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return end
}

// isAway reports whether an error says that the API server could not be reached, or starts.
func isAway(err error) bool {
	var u *url.Error
	var n net.Error
	return errors.As(err, &u) || errors.As(err, &n) || apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err)
}

func innermost(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

const again = "start the run again"

// ended returns why a pod is gone, or err if it is running or nobody knows.
func (b *Backend) ended(ctx context.Context, p pod, err error) error {
	got, failed := b.getPod(ctx, p.name)
	switch {
	case apierrors.IsNotFound(failed) || failed == nil && got.UID != p.uid:
		return &sandbox.End{
			Kind: sandbox.EndRemoved, Err: err, Hint: again,
			Text: fmt.Sprintf("pod %s is no more: somebody deleted it, or the cluster did because its node was gone", p.name),
		}
	case failed != nil:
		why := b.explain("ask for pod "+p.name, failed)
		if end := (*sandbox.End)(nil); isDenied(failed) && errors.As(why, &end) {
			end.Kind = sandbox.EndUnreachable
		}
		return why
	}
	if end := endOf(got); end != nil {
		end.Err = err
		return end
	}
	if err != nil && (nodeAway(err) || !isReady(got) && !exited(err)) {
		return &sandbox.End{
			Kind: sandbox.EndNode, Err: err, Hint: "look at its node: 'kubectl describe node " + got.Spec.NodeName + "'",
			Text: fmt.Sprintf("node %s of pod %s does not answer: %s", got.Spec.NodeName, p.name, innermost(err)),
		}
	}
	if isAway(err) {
		return b.explain("stream to pod "+p.name, err)
	}
	return err
}

// isDenied reports whether an API server denies a request. One that has just started denies for a moment what it allowed
// before, as its authorizer does not know the roles yet.
func isDenied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// exited reports whether an error is the status of a command, which its node has reported.
func exited(err error) bool {
	var status interface{ ExitStatus() int }
	return errors.As(err, &status)
}

// killed reports whether an error is the status of a command that a signal ended.
func killed(err error) bool {
	var status interface{ ExitStatus() int }
	return errors.As(err, &status) && status.ExitStatus() > 128
}

// statusWait is the time between two looks at a pod whose status comes late.
const statusWait = 300 * time.Millisecond

// endedSoon is like ended. A node reports the end of a pod after that of its commands, so it
// waits until ctx ends for that of a pod whose command a signal ended.
func (b *Backend) endedSoon(ctx context.Context, p pod, err error) error {
	for {
		why := b.ended(ctx, p, err)
		var end *sandbox.End
		if !killed(err) || errors.As(why, &end) || !pause(ctx, statusWait) {
			return why
		}
	}
}

// nodeAway reports whether the API server says that it cannot reach the kubelet of a node.
func nodeAway(err error) bool {
	text := err.Error()
	return strings.Contains(text, "error dialing backend") || strings.Contains(text, "unable to upgrade connection") ||
		strings.Contains(text, "proxy error") || strings.Contains(text, ":10250")
}

func isReady(p *core.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == core.PodReady {
			return c.Status == core.ConditionTrue
		}
	}
	return true
}

// disruptions are the reasons of a DisruptionTarget condition.
var disruptions = map[string]struct {
	kind       sandbox.EndKind
	text, hint string
}{
	"PreemptionByScheduler": {sandbox.EndPreempted, "was preempted: a pod of a higher priority needed its place",
		"start the run again, or name a higher kubernetes.priority_class"},
	"DeletionByTaintManager": {sandbox.EndNode, "was deleted because its node did not answer or has a taint",
		"start the run again; kubernetes.tolerations let it stay"},
	"EvictionByEvictionAPI": {sandbox.EndEvicted, "was evicted: somebody empties its node", again},
	"DeletionByPodGC":       {sandbox.EndNode, "was deleted because its node is no more", again},
	"TerminationByKubelet":  {sandbox.EndEvicted, "was ended by its node", "set kubernetes.requests to what it uses, and container.disk_mb"},
}

// endOf returns why a pod ended or is about to; nil: it does not.
func endOf(p *core.Pod) *sandbox.End {
	end := &sandbox.End{}
	over := p.DeletionTimestamp != nil || p.Status.Phase == core.PodFailed || p.Status.Phase == core.PodSucceeded
	for _, c := range p.Status.Conditions {
		if d, known := disruptions[c.Reason]; known && c.Type == core.DisruptionTarget && c.Status == core.ConditionTrue {
			end.Kind, end.Text, end.Hint, over = d.kind, d.text, d.hint, true
			if d.kind == sandbox.EndEvicted && c.Message != "" {
				end.Text += ": " + c.Message
			}
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		t := s.State.Terminated
		if t == nil {
			continue
		}
		switch {
		case t.Reason == "OOMKilled":
			memory := sandbox.MemoryEnd()
			memory.Text = fmt.Sprintf("pod %s %s", p.Name, memory.Text)
			return memory
		case end.Kind == "" && isExpired(p, t.FinishedAt.Time): // its node reports that later than the end of the container
			end.Kind, end.Text, end.Hint, over = sandbox.EndExpired, textExpired, hintExpired, true
		case end.Kind == "" && p.DeletionTimestamp == nil:
			end.Kind, end.Hint = sandbox.EndDied, "its first process ended by itself: 'kubectl logs "+p.Name+"' may say why"
			end.Text = fmt.Sprintf("ended with status %d", t.ExitCode)
			over = true
		}
	}
	switch reason := p.Status.Reason; {
	case reason == "Evicted":
		end.Kind, end.Text = sandbox.EndEvicted, "was evicted: "+p.Status.Message
		end.Hint = disruptions["TerminationByKubelet"].hint
	case reason == "Preempting":
		d := disruptions["PreemptionByScheduler"]
		end.Kind, end.Text, end.Hint = d.kind, d.text, d.hint
	case reason == "DeadlineExceeded":
		end.Kind, end.Text, end.Hint = sandbox.EndExpired, textExpired, hintExpired
	case reason == "NodeLost":
		end.Kind, end.Text, end.Hint = sandbox.EndNode, "is on a node that is lost", again
	case end.Kind == "" && over && p.Status.Message != "":
		end.Kind, end.Text, end.Hint = sandbox.EndRefused, "was refused by its node: "+p.Status.Message, ""
	}
	if !over {
		return nil
	}
	if end.Kind == "" {
		end.Kind, end.Text, end.Hint = sandbox.EndKilled, "was deleted by somebody", again
	}
	end.Text = fmt.Sprintf("pod %s %s", p.Name, end.Text)
	return end
}

const textExpired, hintExpired = "ran as long as it may", "raise kubernetes.max_seconds"

// isExpired reports whether something in a pod ended when the time of the pod was over.
func isExpired(p *core.Pod, ended time.Time) bool {
	most, start := p.Spec.ActiveDeadlineSeconds, p.Status.StartTime
	return most != nil && start != nil && !ended.Before(start.Add(time.Duration(*most)*time.Second))
}

// hopeless returns why a pod will not run; nil: it may.
func hopeless(p *core.Pod) *sandbox.End {
	for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		w := s.State.Waiting
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 && s.Name == "agentsh" {
			return &sandbox.End{
				Kind: sandbox.EndRefused, Text: fmt.Sprintf("the init container ended with status %d: %s", t.ExitCode, strings.TrimSpace(t.Message)),
				Hint: "kubernetes.agentsh_image must have " + inProgram + " of this release: see 'kubectl logs " + p.Name + " -c agentsh'",
			}
		}
		if w == nil {
			continue
		}
		switch w.Reason {
		case "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
			return &sandbox.End{
				Kind: sandbox.EndImage, Text: fmt.Sprintf("image %s cannot be pulled: %s", s.Image, w.Message),
				Hint: "check its name, and name a login of the registry in kubernetes.image_pull_secrets",
			}
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
			return &sandbox.End{Kind: sandbox.EndRefused, Text: "the node cannot make the container: " + w.Message, Hint: nodeHint(w.Message)}
		}
	}
	return nil
}

// userNamespaces matches what nodes say that have no user namespaces for pods.
var userNamespaces = lazy.Regexp(`(?i)user ?namespace|userns|hostUsers|idmap`)

// nodeHint says what to do about a message of a node.
func nodeHint(message string) string {
	switch {
	case strings.Contains(message, "seccomp"):
		return "install the profile on the nodes: kubectl apply -k packaging/kubernetes; or name another in kubernetes.seccomp"
	case strings.Contains(strings.ToLower(message), "apparmor"):
		return "load the profile on the nodes, or name another in kubernetes.apparmor"
	case userNamespaces().MatchString(message):
		return "its nodes give pods no user namespace: write kubernetes: {user_namespace: false} and see doc/platforms/kubernetes.md"
	case strings.Contains(message, `"/bin/sh"`):
		return "name an image with agentsh in kubernetes.agentsh_image: then any image will do"
	}
	return "see doc/platforms/kubernetes.md"
}

// eventsOf returns an end that only the events of a pod tell; nil: there is none.
func (b *Backend) eventsOf(ctx context.Context, p *core.Pod) error {
	message := b.lastWarning(ctx, p, "FailedCreatePodSandBox")
	if message != "" && userNamespaces().MatchString(message) {
		return &sandbox.End{Kind: sandbox.EndRefused, Text: "the node cannot make the pod: " + message, Hint: nodeHint(message)}
	}
	return nil
}

// lastWarning returns the last warning about a pod; empty: there is none, or this user may not
// read events. reason is empty for any.
func (b *Backend) lastWarning(ctx context.Context, p *core.Pod, reason string) string {
	if p == nil {
		return ""
	}
	set := fields.Set{"involvedObject.name": p.Name, "involvedObject.uid": string(p.UID), "type": core.EventTypeWarning}
	if reason != "" {
		set["reason"] = reason
	}
	got, err := b.in(events).List(ctx, meta.ListOptions{FieldSelector: set.AsSelector().String()})
	if err != nil {
		return ""
	}
	var last core.Event
	for i := range got.Items {
		if e, err := typed[core.Event](&got.Items[i]); err == nil && !e.LastTimestamp.Before(&last.LastTimestamp) {
			last = *e
		}
	}
	return last.Message
}

// neverRan is the end of a pod that did not run in time.
func (b *Backend) neverRan(ctx context.Context, p *core.Pod, err error) error {
	const hint = "kubernetes.start_seconds is the time that it has; 'kubectl describe pod' says more"
	if passesAway := isAway(err) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled); passesAway {
		return b.explain("wait for the pod", err)
	}
	if p == nil {
		return &sandbox.End{Kind: sandbox.EndNoRoom, Text: "the cluster has made no pod in time", Hint: hint, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for _, c := range p.Status.Conditions {
		if c.Type == core.PodScheduled && c.Status == core.ConditionFalse {
			return &sandbox.End{
				Kind: sandbox.EndNoRoom, Text: fmt.Sprintf("no node takes the pod: %s", c.Message), Err: err,
				Hint: "lower kubernetes.requests or the limits of container, or see node_selector, tolerations and fuse_device of kubernetes",
			}
		}
	}
	text := fmt.Sprintf("pod %s does not run in time", p.Name)
	if message := b.lastWarning(ctx, p, ""); message != "" {
		text += ": " + message
	}
	return &sandbox.End{Kind: sandbox.EndNoRoom, Text: text, Hint: hint, Err: err}
}
