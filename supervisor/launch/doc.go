// Package launch starts every process of the supervisor. No other package of it does.
//
// A session has one init ([NewInit]). It is the supervisor's own program, executed again
// as "agentsh-init". There a C constructor (init.c) takes control before the Go runtime
// starts. As process 1 of the session's namespaces the init does the following:
//  1. it builds the session from a [Config] (setup.c, mount.c, network.c);
//  2. it gives up every privilege (restrict.c);
//  3. it loads the filter and proves that the restrictions hold (restrict.c);
//  4. it forks one child for each [Init.Start] (loop.c). The child sets up its own
//     descriptors, limits and directory, and calls execve (command.c).
//
// In Go, init.go starts the init and reads its messages, command.go starts commands, and
// commands.go has the table that the messages update. protocol.go and init.h define the
// messages. Specifications of sessions and commands are sent in memory files over a socket
// pair, never in arguments or environments.
//
// server.go starts helper processes of this program, which confine.go and confine.c
// restrict. approve.go and outside.c start the operator's approval program.
package launch
