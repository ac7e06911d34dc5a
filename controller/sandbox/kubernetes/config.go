package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Name is the name of the backend.
const Name = "kubernetes"

// Schemes begin the addresses of clusters.
const (
	schemeContext   = "context:"   // context:NAME or context:NAME/NAMESPACE
	schemeNamespace = "namespace:" // of the current context
	schemeInside    = "in-cluster:"
)

// Forms says what an address may be.
const Forms = schemeContext + "NAME, " + schemeContext + "NAME/NAMESPACE, " + schemeNamespace + "NAME, " + schemeInside

// insideNamespace is the file with the namespace of a pod.
const insideNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// cluster is where sandboxes are made.
type cluster struct {
	rest      *rest.Config
	namespace string
}

// find returns the cluster of an address, or the one that kubectl would use.
func find(address string, getenv func(string) string) (cluster, error) {
	if address == schemeInside {
		return inside()
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if list := getenv("KUBECONFIG"); list == "" && getenv("HOME") != "" {
		rules.Precedence = []string{getenv("HOME") + "/.kube/config"}
	}
	rules.WarnIfAllMissing = false
	config, err := rules.Load()
	if err != nil {
		return cluster{}, fmt.Errorf("kubeconfig: %w", err)
	}
	name, namespace, err := chosen(address, config)
	if err != nil {
		return cluster{}, err
	}
	if name == "" {
		if address == "" && getenv("KUBERNETES_SERVICE_HOST") != "" {
			return inside()
		}
		return cluster{}, fmt.Errorf("no context of a kubeconfig is chosen: name one with --connect %sNAME; "+
			"'kubectl config get-contexts' lists them", schemeContext)
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: name}
	overrides.Context.Namespace = namespace
	client := clientcmd.NewNonInteractiveClientConfig(*config, name, overrides, rules)
	c, err := client.ClientConfig()
	if err != nil {
		return cluster{}, fmt.Errorf("context %s: %w", name, err)
	}
	if namespace, _, err = client.Namespace(); err != nil {
		return cluster{}, fmt.Errorf("context %s: %w", name, err)
	}
	if err := isPrivate(c); err != nil {
		return cluster{}, fmt.Errorf("context %s: %w", name, err)
	}
	return cluster{c, namespace}, nil
}

// chosen returns the context of an address, and the namespace if the address has one. The name
// is empty if there is no context.
func chosen(address string, config *api.Config) (name, namespace string, err error) {
	rest, isContext := strings.CutPrefix(address, schemeContext)
	namespace, isNamespace := strings.CutPrefix(address, schemeNamespace)
	switch {
	case address == "":
		return config.CurrentContext, "", nil
	case isNamespace && namespace != "":
		return config.CurrentContext, namespace, nil
	case !isContext || rest == "":
		return "", "", fmt.Errorf("%.200q is no address of a cluster: it is one of %s", address, Forms)
	}
	if _, known := config.Contexts[rest]; known { // names may have slashes
		return rest, "", nil
	}
	i := strings.LastIndexByte(rest, '/')
	if i > 0 {
		if _, known := config.Contexts[rest[:i]]; known && i+1 < len(rest) {
			return rest[:i], rest[i+1:], nil
		}
	}
	return "", "", fmt.Errorf("the kubeconfig has no context %q: 'kubectl config get-contexts' lists them", rest)
}

// inside returns the cluster of the pod in which this process runs.
func inside() (cluster, error) {
	c, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return cluster{}, fmt.Errorf("%s: this process runs in no pod, or its service account has no token here", schemeInside)
	}
	if err != nil {
		return cluster{}, err
	}
	namespace, err := os.ReadFile(insideNamespace)
	if err != nil {
		return cluster{}, fmt.Errorf("namespace of this pod: %w", err)
	}
	return cluster{c, strings.TrimSpace(string(namespace))}, nil
}

// isPrivate rejects an API server that is reached in the clear, or is not authenticated: what
// a run sends has the values of its credentials.
func isPrivate(c *rest.Config) error {
	if c.Insecure {
		return errors.New("insecure-skip-tls-verify: it does not verify the API server: name its certificate authority instead")
	}
	host := cmp.Or(c.Host, "localhost")
	if !strings.Contains(host, "://") {
		host = "http://" + host
	}
	u, err := url.Parse(host)
	if err != nil {
		return fmt.Errorf("address of the API server: %w", err)
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme != "https" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("the API server at %s has no TLS: write https://", u.Host)
	}
	return nil
}

// own copies a configuration for streams: they have no limit of time or rate.
func (c cluster) own() *rest.Config {
	out := rest.CopyConfig(c.rest)
	out.Timeout = 0
	return out
}

// calls copies a configuration for requests.
func (c cluster) calls() *rest.Config {
	out := rest.CopyConfig(c.rest)
	out.Timeout = requestTime
	return out
}
