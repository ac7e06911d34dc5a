// Package agentsh is the map of the project.
//
// Two programs share one policy and one channel. agentsh is the supervisor: it
// runs commands under policy in a session. agentctl is the controller: it makes
// a sandbox on the host, runs an agent in it and takes its results out.
//
//	agentctl ── channel (SSH over a socketpair) ── agentsh serve
//	                                                ├─ session init (C, process 1 of the session)
//	                                                │   └─ commands
//	                                                └─ file server (agentsh-fuse)
//
// A sandbox on another machine has the same channel over ssh or another program
// (controller/sandbox/remote), or a socket (internal/socket). agentsh serve --stdio or
// --listen makes the sandbox there, and passes bytes between the stream and the supervisor
// (supervisor/place).
//
// The session init and the file server are this same binary under other names:
// the init is a constructor that never reaches Go (supervisor/launch/init.c),
// as is the start of an approval program (supervisor/launch/outside.c),
// the file server starts in supervisor.Reexec, and so do the processes in which
// supervisor/probe tries mechanisms of the kernel. Started as sh or bash it is a shim
// (cmd/agentsh runShim): the first walk below, for the shell it stands in for. In a shared
// session its entry point and a constructor are enough (internal/shim/client), which host.shells
// answers.
//
// # A command
//
//  1. cmd/agentsh newExecCommand or newShellCommand, or the exec channel
//     (internal/channel.Server) of a controller or of exec --session, which
//     host.ServeSocket answers, calls [agentsh/supervisor.Session.Exec].
//  2. preparation.command (supervisor/command.go) finds the program that its
//     execve will run (notify.Describe) and calls policy.Policy.Evaluate.
//     environments.build makes its environment by env.Build; nothing else does.
//  3. launch.Init.Start, the only function that starts a command: the init forks
//     a child that waits until notify.Loop.Register and its control group
//     (supervisor/cgroup) have its process. It then sets limits, changes directory
//     and calls execve, which is the first notification.
//  4. running.wait follows the command to its end, its deadline or a request of the
//     caller. supervisor/journal.go writes its events.
//
// What the command sees of files is a view.Plan: supervisor/view turns file rules
// into mounts and Landlock rules, by namespaces or by Landlock alone.
//
// # A nested execve
//
//  1. The filter (seccomp.DefaultPlan, compiled by libseccomp) stops the thread. A worker
//     of notify.Loop gets the call from its engine (notify/engine: listener or tracer), here
//     by seccomp.Listener.Receive, and passes it to the handler of execs
//     (supervisor/notify/exec.go).
//  2. target.OpenCall reads path and arguments. Target.Resolve opens the file that the
//     caller means. Identities.Of recognises copies of denied programs.
//  3. policy.Policy.Evaluate decides. Deny: EACCES and an event.
//  4. Allow: the engine traces the thread and lets the call continue. Before its first instruction
//     the new program is compared with the one that was evaluated (execs.accept), and missing
//     variables of env_inject are added. After a mismatch the process is killed.
//
// # A connection
//
//  1. The session's network namespace has loopback only. The init opened the
//     listeners in it and sent the netlink messages of supervisor/netns, which
//     redirect every other TCP connection to one of them (netns.Network.Setup).
//     Without a namespace or without nf_tables, notify emulates connect(2): it
//     connects the program's socket to the same listener.
//  2. egress.Proxy accepts the connection, identifies the process (netns), and reads
//     the destination. egress.judge asks policy.Policy.EvaluateHost, which knows
//     the names that the session's name server resolved to an address.
//  3. Allow: the judge returns a route, and only its addresses are dialled. The
//     proxy relays bytes once the name in TLS agrees with the route. It inspects
//     TLS where a rule or a credential needs it, and judges each HTTP request.
//
// A denied connection takes ten functions until its answer. From connect(2):
//
//	notify.sockets.address, notify.readSockaddr, notify.sockets.inetConnect,
//	notify.images.identify, netns.Network.Connect, egress.Proxy.Forbidden,
//	egress.judge.host, egress.names.of, policy.Policy.EvaluateHost,
//	egress.Proxy.refuse
//
// From a CONNECT request at the proxy:
//
//	egress.client.serveProxy, egress.readConnect, egress.readHeader,
//	egress.parseDestination, egress.client.serve, egress.client.open,
//	egress.judge.open, egress.judge.host, policy.Policy.EvaluateHost,
//	egress.Proxy.refuse
//
// # A file operation
//
//  1. fuse/device.Loop reads a request from /dev/fuse in a worker and calls one method
//     of fuse's dispatcher.
//  2. The dispatcher calls the handler of that concern (lookup, data, create, rename,
//     ...). The handler finds the node in fuse/tree and asks access.permit, which
//     evaluates the policy on the path inside the sandbox.
//  3. The operation runs beneath the descriptor of the backing directory, and
//     fuse/changes records it. The loop writes the answer.
//  4. If a person must decide, the dispatcher asks supervisor/approve over the server's
//     control socket and calls the handler again.
//
// internal/trash saves deleted files, internal/snapshot the previous content of changed
// ones.
//
// Below /proc, where no mount can stand for a file, notify decides on opens that
// the policy has judged, and launch.Opener carries them out.
//
// # A harness
//
//  1. cmd/agentctl newRunCommand calls harness.Load (merge, check) and
//     controller.Run, whose steps are the list in controller/steps.go.
//  2. sandbox/local makes a directory and starts agentsh serve on a socketpair;
//     host.Serve opens the session.
//  3. bootstrap.Apply sends everything in as one archive; runtime runs the agent,
//     each of its commands being the first walk.
//  4. extract.Collect takes commits out as a bundle and changed files as an archive
//     with a manifest; the sandbox is deleted in every case.
//  5. controller/record stores the result, logs and differences beside the
//     record, and controller/report makes a page of them. Operators connect to a
//     sandbox through its controller (controller/attach).
//
// # A tool of an agent outside
//
//  1. cmd/agentsh newMCPCommand opens a session and executes agentctl, which inherits a
//     stream to it. The session ends when agentctl does (host.Described.Owner). Or
//     cmd/agentctl newMCPCommand starts a run, in which controller.AgentOptions.Outside
//     serves the tools in place of the agent.
//  2. tools.Toolbox.Serve reads a call. Each tool is a command in the sandbox, by
//     sandbox.Executor, and so the first walk.
//  3. The refusals of the command come from the audit log, and stand in the result.
//
// # An environment value
//
// A value of env.sandbox takes eight forms from the harness to the child. Four
// are the controller's:
//
//  1. The YAML node that internal/strictyaml reads.
//  2. A tree of package harness: harness.Load merges the layers.
//  3. A harness.Text in Harness.Env.Sandbox. Harness.Expand replaces references
//     to variables of the host, and placeholders of credentials join it.
//  4. A line of generated.env, which Expanded.Files writes by env.Format. These
//     bytes travel unchanged: bootstrap.New plans the file, bootstrap.Apply
//     sends it.
//
// Four are the supervisor's (environments.build in supervisor/env.go):
//
//  5. An env.File: envFiles.read reads the directory once per session.
//  6. An env.Var: env.Build parses, filters and merges the layers.
//  7. NAME=value in env.Result.Env, which launch.Command.Env passes on.
//  8. The environment block of execve(2), which launch.Init.Start sends to the
//     init.
//
// # Layers
//
// layers_test.go holds the table of packages: imports only go down, and each
// library has one owner. doc/decisions says why things are as they are, and
// doc/threat-model.md what is promised.
//
// # Tests
//
// make test runs everything, strictly: a kernel feature that is missing fails.
// On a laptop "go test ./..." skips what the machine lacks; internal/testenv
// asks for it.
package agentsh

import _ "embed"

// BashStartup is the script that BASH_ENV names: it disables the builtins that
// act without starting a program.
//
//go:embed bash_startup.sh
var BashStartup string
