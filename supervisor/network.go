package supervisor

import (
	"agentsh/policy"
	"agentsh/supervisor/netns"
	"agentsh/supervisor/notify"
)

// openNetwork makes the session's network, without listeners yet.
func (s *Session) openNetwork() error {
	var err error
	s.network, err = netns.Open(netns.Config{
		Outside: s.cfg.Network.Egress, Policy: s.policy, Emit: s.emit, Approve: s.approvals.Ask,
		Share: s.cfg.Network.Shared, NoNamespace: s.plain(), NoLandlock: s.lost.has(lossLandlock), Log: s.cfg.Log,
	})
	return err
}

// networkCalls says how the notification loop answers calls about sockets.
func (s *Session) networkCalls() notify.Network {
	out := notify.Network{Sockets: s.cfg.Policy.Governs(policy.GroupUnixSocket), UID: s.who.uid, GID: s.who.gid}
	if s.network != nil {
		out.Connect, out.Shared = s.network.Connect, s.network.Shared()
	}
	return out
}
