package blaxel

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// hostsVariable names further hosts of sandboxes, with commas between them.
const hostsVariable = "AGENTSH_BLAXEL_HOSTS"

// vendorDomains are the domains of Blaxel's gateways, as in https://run.blaxel.ai/WORKSPACE/sandboxes/NAME.
var vendorDomains = []string{"blaxel.ai", "blaxel.dev", "bl.run"}

// previewDomain has the previews of all customers: programs of strangers answer there.
const previewDomain = "preview.bl.run"

// below reports whether a host is a domain or below it.
func below(host, domain string) bool { return host == domain || strings.HasSuffix(host, "."+domain) }

// parseHosts reads the hosts that the operator names.
func parseHosts(list string) (hosts []string, err error) {
	for h := range strings.SplitSeq(list, ",") {
		if h = strings.ToLower(strings.TrimSpace(h)); h == "" {
			continue
		}
		if strings.ContainsAny(h, "/:@*?# ") || strings.HasPrefix(h, ".") {
			return nil, fmt.Errorf("%s: %.200q is no name of a host: write it as in %s=sandboxes.example.com", hostsVariable, h, hostsVariable)
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// sandboxURL checks the address of a sandbox in an answer, and returns it without a slash at its end. Requests to it have the API
// key, so it is at the host of the API, below a domain of the vendor, or at a host that the operator named.
func (a *api) sandboxURL(address string) (string, error) {
	u, err := url.Parse(address)
	base, bad := url.Parse(a.base)
	if err := errors.Join(err, bad); err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("address of the sandbox at Blaxel: %.200q is no URL with a host and a path alone", address)
	}
	host := strings.ToLower(u.Hostname())
	vendor := !below(host, previewDomain) && slices.ContainsFunc(vendorDomains, func(d string) bool { return below(host, d) })
	standard := u.Scheme == "https" && (u.Port() == "" || u.Port() == "443")
	switch {
	case u.Scheme == base.Scheme && strings.EqualFold(u.Host, base.Host):
	case standard && vendor:
	case u.Scheme == "https" && slices.Contains(a.hosts, host):
	default:
		return "", fmt.Errorf("address of the sandbox at Blaxel: the API key is not sent to %.200q: it is neither at the host of the API nor "+
			"below %s; if the host is yours, set %s=%.200s", u.Scheme+"://"+u.Host, strings.Join(vendorDomains, ", "), hostsVariable, host)
	}
	return strings.TrimSuffix(address, "/"), nil
}
