package policytest

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"agentsh/internal/strictyaml"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/glob"
	"agentsh/policy/syntax"
)

// minSiblings is the number of names in one directory from which on they become
// one pattern.
const minSiblings = 4

// Learn writes a policy that allows the allowed actions of a recorded session
// and denies everything else. Programs are in one rule. Paths are grouped by
// their operations. A directory replaces many of its files, unless something
// below it was denied. The trees that a session shows without logging them are
// allowed too, and so is what the log does not record: see [Lesson.Notes].
// Interpreters of scripts are among the programs as far as resolve finds them; it may
// be nil.
func Learn(log io.Reader, name string, vars map[string]string, resolve Resolve) (*Lesson, error) {
	l := &learner{
		vars:     vars,
		resolve:  resolve,
		files:    map[string]policy.FileOp{},
		hosts:    map[string]map[string]bool{},
		sockets:  map[string]map[string]bool{},
		signals:  map[string]map[string]bool{},
		commands: map[string]bool{},
		softened: map[string]map[string]bool{},
		absorbed: map[string]map[string]bool{},
	}
	if err := Events(log, l.event); err != nil {
		return nil, err
	}
	if len(l.seen) == 0 {
		return nil, errors.New("the log holds no request that was allowed")
	}
	text, err := l.policy(name)
	if err != nil {
		return nil, err
	}
	widened, err := l.check(text)
	if err != nil {
		return nil, err
	}
	return &Lesson{Policy: text, Widened: widened, Notes: l.notes()}, nil
}

// Lesson is a learned policy.
type Lesson struct {
	Policy []byte
	// Widened are the denied actions that the policy allows, for example a program that was
	// denied because of its arguments.
	Widened []policy.Request
	// Notes say what the log does not record, and what the policy therefore allows.
	Notes []string
}

// learner collects the allowed actions.
type learner struct {
	vars     map[string]string
	resolve  Resolve
	seen     []policy.Request
	denied   []policy.Request
	commands map[string]bool            // names or paths
	moves    [][2]string                // old and new names of renames
	files    map[string]policy.FileOp   // by path
	hosts    map[string]map[string]bool // "tcp 443" to domains and addresses
	sockets  map[string]map[string]bool // operation to paths
	signals  map[string]map[string]bool // target to signals
	softened map[string]map[string]bool // operation to paths
	absorbed map[string]map[string]bool // target to signals
	record   record
}

func (l *learner) event(e wire.Event) error {
	if err := l.record.event(e); err != nil {
		return err
	}
	if e.Decision != policy.Allow.String() && e.Decision != policy.Audit.String() {
		l.refused(e)
		return nil
	}
	if e.Type == wire.EventFile && e.Op == policy.OpRename.String() && path.IsAbs(e.Target) {
		from, to := path.Clean(e.Path), path.Clean(e.Target)
		l.files[to] |= l.makes(from)
		l.moves = append(l.moves, [2]string{from, to})
	}
	for _, q := range Requests(e) {
		l.resolve.apply(q)
		l.seen = append(l.seen, q)
		switch q := q.(type) {
		case *policy.CommandRequest:
			l.commands[l.program(q.Path)] = true
			for _, c := range q.Chain {
				l.commands[l.program(c.Path)] = true
			}
		case *policy.FileRequest:
			l.files[q.Path] |= q.Op
			if q.Op == policy.OpCreate {
				l.files[q.Path] |= policy.OpWrite // the same open, one event
			}
		case *policy.NetworkRequest:
			key := fmt.Sprintf("%s %d", q.Protocol, q.Port)
			add(l.hosts, key, q.Host())
			if q.Domain != "" && q.Addr.IsValid() && policy.Guarded(q.Addr) {
				add(l.hosts, key, q.Addr.String()) // a rule for the name alone does not allow it
			}
		case *policy.UnixSocketRequest:
			add(l.sockets, q.Op, q.Path)
		case *policy.SignalRequest:
			add(l.signals, q.Target, SignalName(q.Signal))
		}
	}
	return nil
}

// makes is the operation that a rename of file is at its new name, beside the
// rename itself.
func (l *learner) makes(file string) policy.FileOp {
	if made := l.files[file] & (policy.OpMkdir | policy.OpSymlink); made != 0 {
		return made
	}
	return policy.OpCreate
}

// makingOps are the operations that create a name.
const makingOps = policy.OpRename | policy.OpCreate | policy.OpMkdir | policy.OpSymlink | policy.OpMknod | policy.OpLink

// evenMoves lets both names of a rename do the same to what is moved: a new
// name that permits more than the old one is refused.
func (l *learner) evenMoves() {
	for changed := true; changed; {
		changed = false
		for _, m := range l.moves {
			both := (l.files[m[0]] | l.files[m[1]]) &^ makingOps
			for _, name := range m {
				if l.files[name]|both != l.files[name] {
					l.files[name] |= both
					changed = true
				}
			}
		}
	}
}

func add(m map[string]map[string]bool, key, item string) {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	m[key][item] = true
}

// program is the base name of a program in a system directory, else its path.
func (l *learner) program(file string) string {
	switch path.Dir(file) {
	case "/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin":
		return quote(path.Base(file))
	}
	return l.abstract(file)
}

// abstract replaces the start of a path by the longest variable that contains
// it.
func (l *learner) abstract(file string) string {
	best, bestValue := "", ""
	for _, name := range append([]string{"WORKSPACE"}, slices.Sorted(maps.Keys(l.vars))...) {
		v := l.vars[name]
		if len(v) > len(bestValue) && v != "/" && (file == v || strings.HasPrefix(file, v+"/")) {
			best, bestValue = name, v
		}
	}
	if best == "" {
		return quote(file)
	}
	return "${" + best + "}" + quote(file[len(bestValue):])
}

// quote returns a pattern for one name. A policy cannot have a byte that is not
// UTF-8: the pattern has a ? instead.
func quote(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		if r == utf8.RuneError && size == 1 {
			b.WriteByte('?')
		} else {
			b.WriteString(glob.Quote(name[i : i+size]))
		}
		i += size
	}
	return b.String()
}

// The parts of a learned policy, in the order they are written.
type learned struct {
	Version    int           `yaml:"version"`
	Name       string        `yaml:"name"`
	GitGuard   bool          `yaml:"git_guard,omitempty"`
	Commands   []learnedRule `yaml:"command_rules,omitempty"`
	Files      []learnedRule `yaml:"file_rules,omitempty"`
	Network    []learnedRule `yaml:"network_rules,omitempty"`
	UnixSocket []learnedRule `yaml:"unix_socket_rules,omitempty"`
	Signals    []learnedRule `yaml:"signal_rules,omitempty"`
}

type learnedRule struct {
	Name       string            `yaml:"name"`
	Commands   []string          `yaml:"commands,flow,omitempty"`
	Paths      []string          `yaml:"paths,omitempty"`
	Domains    []string          `yaml:"domains,flow,omitempty"`
	CIDRs      []string          `yaml:"cidrs,flow,omitempty"`
	Ports      []string          `yaml:"ports,flow,omitempty"`
	Protocols  []string          `yaml:"protocols,flow,omitempty"`
	Signals    []string          `yaml:"signals,flow,omitempty"`
	Target     map[string]string `yaml:"target,flow,omitempty"`
	Operations []string          `yaml:"operations,flow,omitempty"`
	Decision   string            `yaml:"decision"`
}

func (l *learner) policy(name string) ([]byte, error) {
	l.evenMoves()
	p := learned{Version: 1, Name: name, GitGuard: l.record.guarded, Network: l.networkRules(), Signals: l.absorbedRules()}
	p.Files = slices.Concat(l.softRules(), l.fileRules(), l.surroundings())
	if l.record.lacksPrograms() {
		p.Commands = []learnedRule{{Name: "programs", Commands: []string{"*"}, Decision: "allow"}}
	} else if len(l.commands) > 0 {
		p.Commands = []learnedRule{{Name: "programs", Commands: sorted(l.commands), Decision: "allow"}}
	}
	for _, op := range slices.Sorted(maps.Keys(l.sockets)) {
		var paths []string
		for _, file := range sorted(l.sockets[op]) {
			if !strings.HasPrefix(file, "@") {
				file = l.abstract(file)
			}
			paths = append(paths, file)
		}
		p.UnixSocket = append(p.UnixSocket, learnedRule{Name: "sockets-" + op, Paths: paths, Operations: []string{op}, Decision: "allow"})
	}
	for _, target := range slices.Sorted(maps.Keys(l.signals)) {
		p.Signals = append(
			p.Signals,
			learnedRule{Name: "signals-" + target, Signals: sorted(l.signals[target]), Target: map[string]string{"type": target}, Decision: "allow"},
		)
	}
	if l.record.lacksFiles() {
		p.Signals = append(p.Signals,
			learnedRule{Name: "signals", Signals: []string{"@all"}, Target: map[string]string{"type": "session"}, Decision: "allow"})
	}
	return strictyaml.Marshal(p)
}

const (
	machineSecrets = "/etc/{shadow,shadow-,gshadow,gshadow-,sudoers,krb5.keytab}"
	hostKeys       = "/etc/ssh/ssh_host_*"
)

// surroundings are what a session shows as a whole and does not log: without
// them no program starts.
// What else the workspace holds is kept out first: it may lie in a scratch
// directory.
var surroundings = []learnedRule{
	{Name: "rest-of-the-workspace", Paths: []string{"${WORKSPACE}/**"}, Operations: []string{"*"}, Decision: "deny"},
	{
		Name:       "machine-secrets-by-name", // programs that copy or list /etc look whether these exist
		Paths:      []string{machineSecrets, "/etc/{sudoers.d,agentsh,ssl/private}", hostKeys},
		Operations: []string{"stat"}, Decision: "allow",
	},
	{
		Name:       "machine-secrets",
		Paths:      []string{machineSecrets, "/etc/{sudoers.d,agentsh,ssl/private}/**", hostKeys},
		Operations: []string{"*"}, Decision: "deny",
	},
	{
		Name: "user-programs",
		Paths: []string{
			"${USER_HOME:-/nonexistent}/.local/{bin,share/claude,share/pipx/{venvs,py,shared},share/uv/{tools,python}}/**",
			"${USER_HOME:-/nonexistent}/{.nvm/versions,.cargo/bin,.rustup/{toolchains,update-hashes},go/bin,sdk}/**",
			"${USER_HOME:-/nonexistent}/.pyenv/{version,{bin,shims,libexec,plugins,pyenv.d,versions}/**}",
			"${USER_HOME:-/nonexistent}/.rustup/settings.toml",
		},
		Operations: []string{"read", "list", "stat", "execute"}, Decision: "allow",
	},
	{
		Name:       "system",
		Paths:      []string{"/usr/**", "/bin/**", "/sbin/**", "/lib/**", "/lib32/**", "/lib64/**", "/etc/**"},
		Operations: []string{"read", "list", "stat", "execute"}, Decision: "allow",
	},
	{Name: "scratch", Paths: []string{"${HOME}/**", "/tmp/**", "/dev/shm/**"}, Operations: []string{"*"}, Decision: "allow"},
	{Name: "devices", Paths: []string{"/dev/**"}, Operations: []string{"read", "write", "list", "stat"}, Decision: "allow"},
	{Name: "kernel", Paths: []string{"/proc/**", "/sys/**"}, Operations: []string{"read", "list", "stat"}, Decision: "allow"},
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// looking are the operations that change nothing; one of them brings the rest.
const looking = policy.OpRead | policy.OpList | policy.OpStat

// fileRules groups paths that saw the same operations. What was looked at and
// what was changed are grouped apart: reading many files of a directory says
// nothing about writing one.
func (l *learner) fileRules() []learnedRule {
	byOps := map[policy.FileOp]map[string]bool{}
	for _, part := range []policy.FileOp{looking, policy.OpExecute, policy.OpAll &^ (looking | policy.OpExecute)} {
		l.filePart(part, byOps)
	}
	var rules []learnedRule
	for _, ops := range slices.Sorted(maps.Keys(byOps)) {
		rules = append(rules, learnedRule{
			Name: fmt.Sprintf("files-%d", len(rules)+1), Paths: sorted(byOps[ops]), Operations: opWords(ops), Decision: "allow",
		})
	}
	return rules
}

// filePart collects the patterns for the operations in part.
func (l *learner) filePart(part policy.FileOp, byOps map[policy.FileOp]map[string]bool) {
	byPath := map[string]policy.FileOp{}
	for file, ops := range l.files {
		switch {
		case ops&part == 0:
		case part == looking:
			byPath[file] = looking
		default:
			byPath[file] = ops & part
		}
	}
	crowds := l.collapsed(byPath)
	for file, ops := range byPath {
		pattern := l.abstract(file)
		if dir := siblingsOf(crowds, file); dir != "" {
			pattern, ops = l.abstract(dir)+"/**", crowds[dir]
		}
		if byOps[ops] == nil {
			byOps[ops] = map[string]bool{}
		}
		byOps[ops][pattern] = true
	}
}

func opWords(ops policy.FileOp) []string {
	var words []string
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		if ops&op != 0 {
			words = append(words, op.String())
		}
	}
	return words
}

// collapsed returns the directories that replace their files, with the
// operations seen there. Only the outermost ones are returned. Each is at least
// two levels below the root: a policy must not allow all of /etc or /home.
func (l *learner) collapsed(byPath map[string]policy.FileOp) map[string]policy.FileOp {
	members := map[string]int{}
	ops := map[string]policy.FileOp{}
	for file, o := range byPath {
		for dir := path.Dir(file); l.collapsible(dir); dir = path.Dir(dir) {
			members[dir]++
			ops[dir] |= o
		}
	}
	out := map[string]policy.FileOp{}
	for dir, n := range members {
		if n >= minSiblings {
			out[dir] = ops[dir]
		}
	}
	for dir := range out {
		if siblingsOf(out, path.Dir(dir)) != "" {
			delete(out, dir)
		}
	}
	return out
}

func (l *learner) collapsible(dir string) bool {
	for _, q := range l.denied {
		if f, ok := q.(*policy.FileRequest); ok && strings.HasPrefix(f.Path, dir+"/") {
			return false
		}
	}
	if dir == "/usr" || dir == l.vars["WORKSPACE"] {
		return true
	}
	for _, name := range []string{"WORKSPACE", "HOME"} {
		if strings.HasPrefix(l.vars[name]+"/", dir+"/") {
			return false // more than the place a command works in
		}
	}
	return strings.Count(dir, "/") >= 2
}

// siblingsOf returns the outermost collapsed directory that contains file.
func siblingsOf(crowds map[string]policy.FileOp, file string) string {
	found := ""
	for dir := file; dir != "/"; dir = path.Dir(dir) {
		if _, ok := crowds[dir]; ok {
			found = dir
		}
	}
	return found
}

func (l *learner) networkRules() []learnedRule {
	var rules []learnedRule
	for _, key := range slices.Sorted(maps.Keys(l.hosts)) {
		protocol, port, _ := strings.Cut(key, " ")
		var domains, addresses []string
		for _, host := range sorted(l.hosts[key]) {
			if strings.ContainsAny(host, ":") || strings.Trim(host, "0123456789.") == "" {
				addresses = append(addresses, host)
				continue
			}
			domains = append(domains, glob.Quote(host))
		}
		base := learnedRule{Ports: []string{port}, Protocols: []string{protocol}, Decision: "allow"}
		if len(domains) > 0 {
			rule := base
			rule.Name, rule.Domains = fmt.Sprintf("hosts-%s-%s", protocol, port), domains
			rules = append(rules, rule)
		}
		if len(addresses) > 0 {
			rule := base
			rule.Name, rule.CIDRs = fmt.Sprintf("addresses-%s-%s", protocol, port), addresses
			rules = append(rules, rule)
		}
	}
	return rules
}

// check fails if the written policy denies an action that it was learned from.
// It returns the denied actions that the policy allows.
func (l *learner) check(text []byte) (widened []policy.Request, err error) {
	p, err := syntax.Load(policy.Source{Name: "learned", Data: text}, syntax.Options{Vars: l.vars})
	if err != nil {
		return nil, fmt.Errorf("the learned policy does not load: %w", err)
	}
	for _, q := range l.seen {
		if d, diagnostic := p.Evaluate(q); !d.Permits() {
			return nil, fmt.Errorf("the learned policy denies %s: %s", Describe(q), diagnostic.Message)
		}
	}
	for _, q := range l.denied {
		if d, _ := p.Evaluate(q); d.Permits() {
			widened = append(widened, q)
		}
	}
	return widened, nil
}
