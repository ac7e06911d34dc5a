package wire

import "time"

// Net describes the connection of an event.
type Net struct {
	ID        uint64 `json:"id"`                  // of the connection, in its session; 0: none was opened
	Address   string `json:"address,omitempty"`   // dialled address, as IP:port
	Via       string `json:"via,omitempty"`       // connect, http, socks, transparent, dns
	Inspected bool   `json:"inspected,omitempty"` // its requests were inspected
	Sent      int64  `json:"sent,omitempty"`      // bytes to the destination
	Received  int64  `json:"received,omitempty"`  // bytes from it
	Millis    int64  `json:"ms,omitempty"`        // how long it was open
}

// Connection is an open connection of a session.
type Connection struct {
	Net
	Target  string    `json:"target"` // host:port as the session named it
	Command string    `json:"command,omitempty"`
	Process *Process  `json:"process,omitempty"`
	Rule    *RuleAt   `json:"rule,omitempty"`
	Started time.Time `json:"started"`
}

// NetworkVars are the variables by which programs find the proxy of a place and its authorities: those that OpenShell
// sets (crates/openshell-supervisor-process/src/child_env.rs of github.com/NVIDIA/OpenShell), and all_proxy.
var NetworkVars = [...]string{
	"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "http_proxy", "https_proxy", "no_proxy", "grpc_proxy",
	"NODE_USE_ENV_PROXY", "NODE_EXTRA_CA_CERTS", "DENO_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
}
