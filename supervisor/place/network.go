package place

import "agentsh/internal/wire"

// networkVars are the variables of the network of this process.
func networkVars(lookup func(string) (string, bool)) map[string]string {
	out := map[string]string{}
	for _, name := range wire.NetworkVars {
		if v, set := lookup(name); set && v != "" {
			out[name] = v
		}
	}
	return out
}
