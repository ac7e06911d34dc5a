package wire

// Commands of agentsh that sessions of ssh start in a sandbox.
const (
	CommandSFTP    = "sftp-server" // serves sftp on its standard input and output
	CommandForward = "forward"     // connects its standard input and output to an address
)

// Lines that [CommandForward] writes to standard error. Any other line is an error.
const (
	ForwardConnected = "connected" // the connection is made
	ForwardEnd       = "end"       // the other side has sent its last byte; the number of its bytes follows
)

// ForwardUnix begins the address of a Unix socket; any other is HOST:PORT.
const ForwardUnix = "unix:"
