package netns

import (
	"strings"

	"agentsh/policy/env"
)

// Variables returns the variables that tell programs the address of the proxy,
// and, if TLS is inspected, the file with its authority. Connections of programs
// that ignore them are redirected.
func (n *Network) Variables(bundle string) []env.Var {
	if n == nil {
		return nil
	}
	var vars []env.Var
	proxy := "http://" + n.at4.proxy.String()
	for _, v := range []env.Var{
		{Name: "HTTP_PROXY", Value: proxy},
		{Name: "HTTPS_PROXY", Value: proxy},
		{Name: "ALL_PROXY", Value: proxy},
		{Name: "NO_PROXY", Value: "localhost,127.0.0.1,::1"},
	} {
		vars = append(vars, v, env.Var{Name: strings.ToLower(v.Name), Value: v.Value})
	}
	if !n.proxy.Intercepts() {
		return vars
	}
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
		"PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT"} {
		vars = append(vars, env.Var{Name: name, Value: bundle})
	}
	return vars
}

// ResolverFile returns the text of the session's resolv.conf(5). It has the C
// library ask the session's name server; where the network is shared it asks
// over TCP, because datagrams are refused there.
func (n *Network) ResolverFile() []byte {
	text := "nameserver 127.0.0.1\n"
	if n.shared {
		text += "options use-vc\n"
	}
	return []byte(text)
}

// Intercepts reports whether TLS is inspected. Programs must then trust the
// authorities of CABundle.
func (n *Network) Intercepts() bool { return n != nil && n.proxy.Intercepts() }

// CABundle returns the session's authority and those of the machine, in PEM.
func (n *Network) CABundle() ([]byte, error) { return n.proxy.CABundle() }
