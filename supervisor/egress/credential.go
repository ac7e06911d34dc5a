package egress

// Credential is a secret that the session knows by a placeholder only.
type Credential struct {
	Name        string // shown in events and refusals
	Placeholder string // what the session holds; not part of any real text
	Value       string // the secret; in no event, error or answer
	// Endpoints are the hosts where the credential may be used: a name, *.name,
	// either with :port (443 without).
	Endpoints []string
	Header    string // the only header it may stand in; empty with Query: anywhere
	Query     string // the only query parameter it may stand in
}
