package policy

import (
	"path"
	"slices"
	"strings"
	"sync"

	"agentsh/policy/glob"
)

// commandRules evaluates command requests.
type commandRules struct {
	rules       []*Rule
	index       commandIndex
	other       Effect // where no rule matches
	transparent map[string]bool
	execFrom    []*glob.Glob
	outside     []string // directories whose content came from outside
	files       *fileRules
}

// newCommandRules builds the indexes that evaluation uses. It needs files to
// check whether a command could have created a link.
func newCommandRules(d *Definition, files *fileRules) commandRules {
	c := commandRules{
		rules:       d.Rules[GroupCommand],
		index:       newCommandIndex(d.Rules[GroupCommand]),
		other:       orDeny(d.Defaults.Command),
		transparent: d.Transparent,
		execFrom:    d.ExecFrom,
		outside:     []string{"/tmp", "/var/tmp", "/dev", "/proc", "/sys"},
		files:       files,
	}
	for _, name := range [...]string{"WORKSPACE", "PROJECT_ROOT", "GIT_ROOT", "HOME", "TMPDIR"} {
		if dir := d.Vars[name]; dir != "" {
			c.outside = append(c.outside, cleanVar(dir))
		}
	}
	return c
}

// cleanVar returns a variable's value with an absolute path cleaned.
func cleanVar(value string) string {
	if strings.HasPrefix(value, "/") {
		return path.Clean(value)
	}
	return value
}

// DeniedPrograms returns the names and path globs of command rules that do not
// allow and that match by content, sorted. A program with the same content as a
// file that one of them matches is evaluated as that file. Entries that match
// every program are omitted.
func (p *Policy) DeniedPrograms() []string {
	var out []string
	for _, rule := range p.commands.rules {
		if rule.Effect.Permits() || rule.Command.NameOnly {
			continue
		}
		for _, e := range rule.Command.Programs {
			if !e.All() {
				out = append(out, e.Glob.String())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// subject is one program of a request.
type subject struct {
	program *Program
	argv    []string
	request *CommandRequest
}

// decide evaluates a command. It evaluates the program, every program of its
// chain, and the payloads of those that are wrappers. The strictest decision
// applies.
func (c *commandRules) decide(q *CommandRequest) (Decision, reason) {
	s := subject{program: &q.Program, argv: q.Argv, request: q}
	d, why := c.program(&s)
	inside, e, w := c.payloads(&s)
	d, why = stricterOf(d, why, e, w)
	for i := range q.Chain {
		link := subject{program: &q.Chain[i], argv: chainArgv(&q.Chain[i], q, inside), request: q}
		e, w := c.program(&link)
		d, why = stricterOf(d, why, notRedirected(e), w)
		_, e, w = c.payloads(&link)
		d, why = stricterOf(d, why, e, w)
	}
	return d, why
}

// payloads evaluates the payloads of one program if it is a wrapper. Payloads
// that are also in the chain are evaluated there, by their files.
func (c *commandRules) payloads(s *subject) ([]Payload, Decision, reason) {
	d, why := Decision{Effect: Allow}, reason{}
	name := c.wrapped(s)
	if name == "" {
		return nil, d, why
	}
	list, err := payloads(name, s.argv, c.isTransparent)
	guessed := s.guessed(name)
	for i := range list {
		if guessed {
			list[i].InProcess, list[i].Applet = false, false
		}
		if inChain(s.request, list[i].Program) {
			continue
		}
		e, w := c.payload(&list[i], s.request)
		d, why = stricterOf(d, why, notRedirected(e), w)
	}
	if err != nil && (name == LoaderWrapper || name == MultiCallWrapper && !guessed) && d.Effect != Deny {
		d, why = Decision{}, reason{text: err.Error(), about: s.program.Called}
	}
	return list, d, why
}

func (c *commandRules) isTransparent(name string) bool { return c.transparent[name] }

// chainArgv returns the argument vector of one program of the chain. It is the
// given one if known, else that of the payload with that name, else that of an
// interpreter.
func chainArgv(link *Program, q *CommandRequest, inside []Payload) []string {
	if link.Args != nil {
		return link.Args
	}
	for i := range inside {
		if inside[i].Program == link.Called {
			return inside[i].Argv
		}
	}
	return scriptArgv(link, q)
}

func stricterOf(d Decision, why reason, e Decision, w reason) (Decision, reason) {
	if strictness[e.Effect] < strictness[d.Effect] {
		return e, w
	}
	return d, why
}

// notRedirected turns a redirect of a nested program into a denial. The
// replacement would run without the rest of the command.
func notRedirected(d Decision) Decision {
	if d.Effect == Redirect {
		d.Effect = Deny
	}
	return d
}

// scriptArgv returns the argument vector of an interpreter if it is not known:
// its name, the script and the script's arguments. See execve(2), Interpreter
// scripts.
func scriptArgv(interpreter *Program, q *CommandRequest) []string {
	argv := make([]string, 0, len(q.Argv)+1)
	argv = append(argv, interpreter.Called, q.Called)
	if len(q.Argv) > 1 {
		argv = append(argv, q.Argv[1:]...)
	}
	return argv
}

// program evaluates one program under all its names. Certain names (its file,
// trusted links to it) must be allowed. Names that the caller could choose, and
// programs with the same content, can only cause a denial.
func (c *commandRules) program(s *subject) (Decision, reason) {
	pr := s.program
	switch {
	case pr.Called == "" && pr.Path == "":
		return Decision{}, reason{text: "the request names no program"}
	case pr.Path != "" && !cleanPath(pr.Path):
		return Decision{}, reason{text: "the program's path is not absolute and resolved", about: pr.Path}
	case !c.runsFrom(pr.Path):
		return Decision{}, reason{text: "programs run only from the directories of exec_from", about: pr.Path}
	}
	var found matches
	if multi := multiCall(pr.Path); multi && !multiCalled(appletName(s.argv)) {
		found.add(c.first(appletName(s.argv), s, false), true)
		found.add(c.first(pr.Path, s, false), false)
		found.add(c.first(calledName(s), s, false), false)
	} else {
		c.names(s, &found, multi)
	}
	return c.combine(s, found)
}

// names evaluates every name of a program, unless the program selects its
// function by its name.
func (c *commandRules) names(s *subject, found *matches, multi bool) {
	pr := s.program
	found.add(c.first(pr.Path, s, false), true)
	for _, name := range pr.Names {
		found.add(c.first(name, s, false), !c.fromOutside(name))
	}
	if len(s.argv) > 0 && s.argv[0] != pr.Called {
		found.add(c.first(base(s.argv[0]), s, false), false)
	}
	if pr.Called != pr.Path {
		called := c.first(calledName(s), s, false)
		sure := called != nil && found.certain == nil && pr.Path != "" && c.trustworthy(pr.Called)
		found.add(called, sure)
	}
	for i := 0; i < len(pr.Same) && !multi; i++ {
		found.add(c.first(pr.Same[i], s, true), false)
	}
}

// matches holds the rules that match the names of one program.
type matches struct {
	certain  *Rule // the strictest for certain names
	doubtful *Rule // the strictest for names that the caller could choose
	closing  *Rule // a rule for every program, which replaces the default
}

func (o *matches) add(rule *Rule, certain bool) {
	switch {
	case rule == nil:
	case rule.Command.AllPrograms && !rule.Effect.Permits():
		// The rule does not match this name in particular. Another name may be
		// allowed.
		if certain {
			o.closing = stricterRule(o.closing, rule)
		}
	case certain:
		o.certain = stricterRule(o.certain, rule)
	default:
		o.doubtful = stricterRule(o.doubtful, rule)
	}
}

// fromOutside reports whether a link may be part of the workspace's initial
// content, or whether its target depends on the reading process, as below
// /proc.
func (c *commandRules) fromOutside(link string) bool {
	for _, dir := range c.outside {
		if below(link, dir) {
			return true
		}
	}
	return !cleanPath(link)
}

// combine returns the decision of the rules that match the names of a program.
func (c *commandRules) combine(s *subject, found matches) (Decision, reason) {
	d := Decision{Effect: c.other}
	why := reason{about: s.program.Path}
	switch {
	case found.certain != nil:
		d = Decision{Effect: found.certain.Effect, Rule: found.certain}
	case found.closing != nil:
		d = Decision{Effect: found.closing.Effect, Rule: found.closing}
	case s.program.Path == "" && d.Permits():
		d, why.text = Decision{}, "the program was not found"
	}
	if found.doubtful != nil && strictness[found.doubtful.Effect] < strictness[d.Effect] {
		d = Decision{Effect: found.doubtful.Effect, Rule: found.doubtful}
		why = reason{about: s.program.Called}
	}
	return d, why
}

// stricterRule returns the stricter of two rules. If they are equally strict it
// returns the first. Nil means that no rule matches.
func stricterRule(a, b *Rule) *Rule {
	if a == nil || b != nil && strictness[b.Effect] < strictness[a.Effect] {
		return b
	}
	return a
}

// first returns the first rule that matches a name and the rest of the request.
// name is an absolute path or a base name. identical means that the program
// only has the same content as the file of that name.
func (c *commandRules) first(name string, s *subject, identical bool) *Rule {
	if name == "" {
		return nil
	}
	rules := c.rules
	id := c.index.first(name, func(id int32) bool {
		c := rules[id].Command
		return (!identical || !c.NameOnly) && c.selects(s, name, rules[id].Effect)
	})
	if id == none {
		return nil
	}
	return rules[id]
}

// selects reports whether all conditions other than the program's name match.
// The name selects the option grammar.
func (c *CommandSelector) selects(s *subject, name string, effect Effect) bool {
	q := s.request
	switch {
	case q.Depth < c.Depth.Min || c.Depth.Max >= 0 && q.Depth > c.Depth.Max:
		return false
	case c.Terminal != 0 && (c.Terminal > 0) != q.Interactive:
		return false
	case len(c.Parents) > 0 && !matchesAny(c.Parents, q.Parent):
		return false
	case len(c.Ancestors) > 0 && !c.matchesAncestor(q.Ancestors):
		return false
	case len(c.Dirs) > 0 && !c.matchesCwd(q.Cwd):
		return false
	}
	var args []string
	if len(s.argv) > 1 {
		args = s.argv[1:]
	}
	if len(c.Patterns) > 0 && !c.matchesJoined(args, effect) {
		return false
	}
	return c.Args == nil || MatchArgs(c.Args, name, args, c.AllArgs)
}

func (c *CommandSelector) matchesAncestor(ancestors []string) bool {
	for _, a := range ancestors {
		if matchesAny(c.Ancestors, a) {
			return true
		}
	}
	return false
}

func (c *CommandSelector) matchesCwd(cwd string) bool {
	for _, g := range c.Dirs {
		if g.Match(cwd) {
			return true
		}
	}
	return false
}

// maxJoined is the longest argument text that patterns are matched against, in
// bytes. A longer text matches every deny rule and no allow rule.
const maxJoined = 2 << 20

func (c *CommandSelector) matchesJoined(args []string, effect Effect) bool {
	total := 0
	for _, a := range args {
		total += len(a) + 1
	}
	if total > maxJoined {
		return !effect.Permits()
	}
	buffer := joined.Get().(*[]byte)
	defer joined.Put(buffer)
	text := (*buffer)[:0]
	for i, a := range args {
		if i > 0 {
			text = append(text, ' ')
		}
		text = append(text, a...)
	}
	*buffer = text
	for _, re := range c.Patterns {
		if re.Match(text) {
			return true
		}
	}
	return false
}

// joined caches buffers for joined arguments. One is used at every exec for
// which a rule with patterns is evaluated.
var joined = sync.Pool{New: func() any { return new([]byte) }}

// runsFrom reports whether exec_from allows the program's directory. Without
// exec_from it returns true.
func (c *commandRules) runsFrom(file string) bool {
	if len(c.execFrom) == 0 {
		return true
	}
	for _, g := range c.execFrom {
		if file != "" && g.Match(file) {
			return true
		}
	}
	return false
}

// calledName returns the called name as rules match it. It is a path if the
// caller used a path.
func calledName(s *subject) string {
	called := s.program.Called
	if called == "" || called[0] == '/' || !strings.Contains(called, "/") {
		return called
	}
	if s.request.Cwd == "" {
		return base(called)
	}
	return path.Join(s.request.Cwd, called)
}

// trustworthy reports whether no command could have created a link of that
// name. The link is not part of the workspace's initial content, and the file
// rules deny every change in its directory.
func (c *commandRules) trustworthy(name string) bool {
	if c.fromOutside(name) {
		return false
	}
	const planting = OpCreate | OpSymlink | OpRename | OpLink
	if c.files.rule(name, planting) == nil {
		return c.files.write == Deny
	}
	for op := OpRead; op <= planting; op <<= 1 {
		if planting&op == 0 {
			continue
		}
		effect := c.files.write
		if rule := c.files.rule(name, op); rule != nil {
			effect = rule.Effect
		}
		if effect != Deny {
			return false
		}
	}
	return true
}

// below reports whether name is dir or lies below it.
func below(name, dir string) bool {
	if dir == "/" {
		return strings.HasPrefix(name, "/")
	}
	return strings.HasPrefix(name, dir) && (len(name) == len(dir) || name[len(dir)] == '/')
}
