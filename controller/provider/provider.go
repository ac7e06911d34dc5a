// Package provider prepares credential sources before a sandbox exists.
//
// [Wanted] makes definitions from an expanded harness, [Plan] compares them
// with those of a gateway, [Reconcile] applies the plan. [Secrets] lists how far
// each secret of a harness travels.
package provider

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sort"

	"agentsh/controller/harness"
)

// Definition is one wanted provider with the values of its secrets.
type Definition struct {
	Name, Type  string
	Config      map[string]string
	Credentials map[string]string // name to value; the values are secrets. Those that Command prints are empty
	Command     []string          `json:",omitempty"`
	Endpoints   []string
	// One of these says where the credential goes, if there are endpoints.
	Header string
	Query  string
	Path   bool
}

// Wanted returns the definitions of a harness, sorted by name.
func Wanted(x *harness.Expanded) []Definition {
	var out []Definition
	for _, p := range x.Credentials {
		d := Definition{
			Name: p.Name.V, Type: p.Type.V, Header: p.Header.V, Query: p.Query.V, Path: p.Path.V,
			Config: texts(p.Config), Credentials: texts(p.Credentials),
		}
		for _, e := range p.Endpoints {
			d.Endpoints = append(d.Endpoints, e.V)
		}
		for _, a := range p.Command {
			d.Command = append(d.Command, a.V)
		}
		out = append(out, d)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func texts(m harness.Map) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v.V
	}
	return out
}

// Digest returns a keyed digest of the definition, in hexadecimal. Without the
// key nobody can try values against it.
func (d Definition) Digest(key []byte) string {
	// The encoding sorts the keys of maps and cannot fail for these types.
	text, err := json.Marshal(d)
	if err != nil {
		panic("provider: a definition that cannot be encoded: " + err.Error())
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil))
}

// secrets returns the values that may not appear in any text.
func secrets(list []Definition) []string {
	var out []string
	for _, d := range list {
		for _, v := range d.Credentials {
			if v != "" {
				out = append(out, v)
			}
		}
	}
	return out
}
