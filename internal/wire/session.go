package wire

// HandedSession is a session that agentsh mcp hands to agentctl, by descriptors that the
// program inherits. It stands in a file without a name.
type HandedSession struct {
	Version   Version `json:"version"`
	Name      string  `json:"name"`
	Workspace string  `json:"workspace"` // inside
	Cwd       string  `json:"cwd"`       // inside: where commands start

	Stream int `json:"stream_fd"` // to the session's supervisor
	// Owner is the descriptor that keeps the session: the session ends when it is closed.
	// 0: somebody else keeps it.
	Owner int `json:"owner_fd,omitempty"`

	Key     []byte `json:"key"`      // the client's private half
	HostKey []byte `json:"host_key"` // the session's public half
	Server  string `json:"server"`   // instance of the session

	Program string `json:"program"` // agentsh, for checkpoints and differences
}
