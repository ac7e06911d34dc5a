package supervisor

import (
	"fmt"

	"agentsh/policy"
	"agentsh/supervisor/netns"
	"agentsh/supervisor/notify"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/view"
)

// openNetwork makes the session's network, without listeners yet.
func (s *Session) openNetwork() error {
	var err error
	s.network, err = netns.Open(netns.Config{
		Outside: s.cfg.Network.Egress, Policy: s.policy, Emit: s.emit, Approve: s.approvals.Ask,
		Share: s.cfg.Network.Shared, NoNamespace: s.confinement.SharesNetwork(), NoLandlock: s.missing.Has(probe.Landlock), Log: s.cfg.Log,
	})
	return err
}

// networkFiles are the files that commands need to use a network.
func networkFiles(n *netns.Network) (view.Files, error) {
	if n == nil {
		return view.Files{}, nil
	}
	f := view.Files{Resolver: n.ResolverFile()}
	if !n.Intercepts() {
		return f, nil
	}
	var err error
	if f.Certificates, err = n.CABundle(); err != nil {
		return view.Files{}, fmt.Errorf("authorities of the session: %w", err)
	}
	return f, nil
}

// networkCalls says how the notification loop answers calls about sockets.
func (s *Session) networkCalls() notify.Network {
	out := notify.Network{Sockets: s.cfg.Policy.Governs(policy.GroupUnixSocket), UID: s.user.UID, GID: s.user.GID}
	if s.network != nil {
		out.Connect, out.Shared = s.network.Connect, s.network.Shared()
	}
	return out
}
