package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/policy"
)

// Degradation is a word of degraded in the operator's configuration or on the
// command line: something that a session may lack where the machine has none.
type Degradation struct {
	Word string
	At   string // file:line:column, or the flag
}

// loss is a mechanism that a session can do without, on the operator's word.
type loss struct {
	primitives []string // the mechanism is lost where one of them does not work
	lost       string   // what no longer holds then
}

// The words of degraded.
const (
	lossScopes     = "landlock_scopes"
	lossLandlock   = "landlock"
	lossKillable   = "wait_killable"
	lossVerify     = "exec_verify"
	lossFileServer = "file_server"
	lossGroups     = "cgroup"
	lossNamespaces = "namespaces"
)

// losses are the words of degraded. doc/detect.md explains them.
var losses = map[string]loss{
	lossScopes: {[]string{"landlock_scopes"},
		"signals are kept inside by the pid namespace alone, abstract sockets by the network namespace alone, and files by the rights this " +
			"Landlock has"},
	lossLandlock: {[]string{"landlock"},
		"files are held by mounts alone, with nothing beneath them; what landlock_scopes holds is lost too"},
	lossKillable: {[]string{"wait_killable"},
		"a signal interrupts a call that waits for its verdict, and the call is judged again: programs with frequent signals are slower"},
	lossVerify: {[]string{"ptrace"},
		"a program is judged before its execve alone, and another thread can exchange its path and arguments meanwhile; env_inject is not " +
			"put back at nested programs"},
	lossFileServer: {[]string{"fuse"},
		"the workspace is mounted as it is: no decision for each operation, no change record, and files belong to the commands' user"},
	lossGroups: {[]string{"cgroup"},
		"limits on memory, swap and processor are not held; pids_max counts the processes of the user"},
	lossNamespaces: {
		[]string{"user_namespace", "mount_namespace", "pid_namespace", "net_namespace", "other_namespaces", "mount_api", "private_proc"},
		"files are held by Landlock alone, so that names, sizes and modes of all files can be seen and the modes and times of one's own " +
			"changed; " +
			"processes of the machine can be seen; sockets in the file system are held by their permissions alone; there is no network, not " +
			"even loopback, unless it is shared",
	},
}

// everyWord is every word of degraded.
func everyWord() []Degradation { return degradations(nil, slices.Sorted(maps.Keys(losses))) }

// implies are the words that another one includes.
var implies = map[string]string{lossFileServer: lossNamespaces, lossScopes: lossLandlock}

// shortest are the words without those that others among them include.
func shortest(words []string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return slices.Contains(words, implies[w]) })
}

// needs are the primitives of a loss for this process: a user namespace is for
// who is not root.
func (l loss) needs(root bool) []string {
	return slices.DeleteFunc(slices.Clone(l.primitives), func(name string) bool { return name == "user_namespace" && root })
}

// lacks are the words whose mechanism is not there, each with the reason.
type lacks map[string]error

// has reports whether the session does without a mechanism.
func (l lacks) has(word string) bool { return l[word] != nil }

// words are the words in order.
func (l lacks) words() []string { return slices.Sorted(maps.Keys(l)) }

// survey tries what the operator lets a session do without. A word for what
// works here changes nothing.
func (c *Config) survey() (lacks, error) {
	lost := lacks{}
	for _, d := range c.Degraded {
		l, known := losses[d.Word]
		if !known {
			return nil, fmt.Errorf("%s: degraded has no word %q (%s)", d.At, d.Word, policy.DidYouMean(d.Word, slices.Sorted(maps.Keys(losses))))
		}
		err := l.missing()
		if errors.Is(err, errUndecided) {
			return nil, fmt.Errorf("%s: degraded %s: %w", d.At, d.Word, err) // what may be there is not given up
		}
		if err != nil {
			lost[d.Word] = err
		}
	}
	if lost.has(lossLandlock) && !lost.has(lossScopes) {
		lost[lossScopes] = lost[lossLandlock]
	}
	if lost.has(lossNamespaces) && !lost.has(lossFileServer) {
		lost[lossFileServer] = errors.New("a session without mounts has no place for it")
	}
	return lost, nil
}

// missing tries the mechanism; nil: it works.
func (l loss) missing() error {
	for _, name := range l.needs(os.Geteuid() == 0) {
		if err := tryCandidate(name); err != nil {
			return err
		}
	}
	return nil
}

// explain adds to why a session could not be opened which word would let it
// open, and what would be lost.
func (c *Config) explain(why error, lost lacks) error {
	lines := []string{why.Error()}
	for _, name := range indispensable {
		if err := tryCandidate(name); err != nil {
			lines = append(lines, err.Error()+"\n  nothing is judged without it: no word opens a session here")
		}
	}
	if len(lines) == 1 {
		lines = append(lines, c.wordsFor(lost)...)
	}
	if len(lines) == 1 {
		return why
	}
	return &lackError{why, strings.Join(lines, "\n")}
}

// indispensable are the primitives without which no session opens.
var indispensable = []string{"seccomp_notify", "proc_mem"}

// wordsFor are the words that this place needs beyond those it was given, each
// with the reason and what would be lost.
func (c *Config) wordsFor(lost lacks) []string {
	var lines []string
	missing := map[string]error{}
	for _, word := range slices.Sorted(maps.Keys(losses)) {
		if !lost.has(word) && word != lossGroups { // that one keeps no session from opening
			missing[word] = losses[word].missing()
		}
	}
	for _, word := range slices.Sorted(maps.Keys(missing)) {
		if err := missing[word]; err != nil && missing[implies[word]] == nil {
			lines = append(lines, fmt.Sprintf("%v\n  degraded: [%s] opens a session without it; then %s", err, word, losses[word].lost))
		}
	}
	return lines
}

// wordOf is the word that lets a session open without a primitive; empty: none.
func wordOf(primitive string) string {
	for word, l := range losses {
		if slices.Contains(l.needs(os.Geteuid() == 0), primitive) {
			return word
		}
	}
	return ""
}

// lackError is an error with the words that would avoid it.
type lackError struct {
	why  error
	text string
}

func (e *lackError) Error() string { return e.text }
func (e *lackError) Unwrap() error { return e.why }

// tell says for the audit log what a session does without.
func (l lacks) tell() string {
	var out []string
	for _, word := range l.words() {
		out = append(out, fmt.Sprintf("without %s (%v): %s", word, l[word], losses[word].lost))
	}
	return strings.Join(out, "; ")
}

// degraded reads the words of degraded.
func (r *configReader) degraded(into *[]Degradation) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.words(n, "degraded", slices.Sorted(maps.Keys(losses)), func(word, at string) {
			*into = append(*into, Degradation{word, at})
		})
	}
}
