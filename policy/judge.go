package policy

import (
	"path"
	"strings"
	"sync"
)

// subject is one program of a request, as the rules see it.
type subject struct {
	program *Program
	argv    []string
	request *CommandRequest
}

// command decides a command: the program itself, every program of its chain,
// and, where these are wrappers, what their arguments name. The strictest
// answer holds.
func (p *Policy) command(q *CommandRequest) (Decision, reason) {
	s := subject{program: &q.Program, argv: q.Argv, request: q}
	d, why := p.subject(&s)
	inside, e, w := p.inside(&s)
	d, why = stricterOf(d, why, e, w)
	for i := range q.Chain {
		link := subject{program: &q.Chain[i], argv: chainArgv(&q.Chain[i], q, inside), request: q}
		e, w := p.subject(&link)
		d, why = stricterOf(d, why, notRedirected(e), w)
		_, e, w = p.inside(&link)
		d, why = stricterOf(d, why, e, w)
	}
	return d, why
}

// inside decides for the payloads of one program, if it is a wrapper. Those
// that the chain holds are judged there, by their files.
func (p *Policy) inside(s *subject) ([]Payload, Decision, reason) {
	d, why := Decision{Effect: Allow}, reason{}
	name := p.wrapped(s)
	if name == "" {
		return nil, d, why
	}
	list, err := payloads(name, s.argv, p.isTransparent)
	guessed := s.guessed(name)
	for i := range list {
		if guessed {
			list[i].InProcess, list[i].Applet = false, false
		}
		if inChain(s.request, list[i].Program) {
			continue
		}
		e, w := p.payload(&list[i], s.request)
		d, why = stricterOf(d, why, notRedirected(e), w)
	}
	if err != nil && (name == loaderName || name == boxName && !guessed) && d.Effect != Deny {
		d, why = Decision{}, reason{text: err.Error(), about: s.program.Called}
	}
	return list, d, why
}

func (p *Policy) isTransparent(name string) bool { return p.transparent[name] }

// chainArgv is the argument vector of one program of the chain: as it is
// given, else that of the payload of that name, else that of an interpreter.
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

// notRedirected turns the redirection of a program that is not the one asked
// for into a denial: the replacement would run without the rest of the command.
func notRedirected(d Decision) Decision {
	if d.Effect == Redirect {
		d.Effect = Deny
	}
	return d
}

// scriptArgv is the argument vector of an interpreter whose own is not known:
// its name, the script, the script's arguments. See execve(2), Interpreter
// scripts.
func scriptArgv(interpreter *Program, q *CommandRequest) []string {
	argv := make([]string, 0, len(q.Argv)+1)
	argv = append(argv, interpreter.Called, q.Called)
	if len(q.Argv) > 1 {
		argv = append(argv, q.Argv[1:]...)
	}
	return argv
}

// subject decides for one program under all its names. What is certain about
// it (its file, trusted links to it) must be permitted; what its caller could
// choose (the name it is called by) and what it resembles can only deny.
func (p *Policy) subject(s *subject) (Decision, reason) {
	pr := s.program
	switch {
	case pr.Called == "" && pr.Path == "":
		return Decision{}, reason{text: "the request names no program"}
	case pr.Path != "" && !cleanPath(pr.Path):
		return Decision{}, reason{text: "the program's path is not absolute and resolved", about: pr.Path}
	case !p.runsFrom(pr.Path):
		return Decision{}, reason{text: "programs run only from the directories of exec_from", about: pr.Path}
	}
	var said opinions
	if multi := multiCall(pr.Path); multi && !multiCalled(appletName(s.argv)) {
		said.add(p.first(appletName(s.argv), s, false), true)
		said.add(p.first(pr.Path, s, false), false)
		said.add(p.first(p.calledName(s), s, false), false)
	} else {
		p.names(s, &said, multi)
	}
	return p.settle(s, said)
}

// names asks about every name of a program that does not choose by its name
// what it is.
func (p *Policy) names(s *subject, said *opinions, multi bool) {
	pr := s.program
	said.add(p.first(pr.Path, s, false), true)
	for _, name := range pr.Names {
		said.add(p.first(name, s, false), !p.planted(name))
	}
	if len(s.argv) > 0 && s.argv[0] != pr.Called {
		said.add(p.first(base(s.argv[0]), s, false), false)
	}
	if pr.Called != pr.Path {
		called := p.first(p.calledName(s), s, false)
		sure := called != nil && said.certain == nil && pr.Path != "" && p.trustworthy(pr.Called)
		said.add(called, sure)
	}
	for i := 0; i < len(pr.Same) && !multi; i++ {
		said.add(p.first(pr.Same[i], s, true), false)
	}
}

// opinions are what the rules say to the names of one program.
type opinions struct {
	certain  *Rule // the strictest for names that are certain
	doubtful *Rule // the strictest for names its caller could choose
	closing  *Rule // one about every program, which stands in for the default
}

func (o *opinions) add(rule *Rule, certain bool) {
	switch {
	case rule == nil:
	case rule.command.everything && !rule.Effect.permits():
		// It says nothing about this name: another name may be permitted.
		if certain {
			o.closing = stricterRule(o.closing, rule)
		}
	case certain:
		o.certain = stricterRule(o.certain, rule)
	default:
		o.doubtful = stricterRule(o.doubtful, rule)
	}
}

// planted reports whether a link may have come with the workspace, or leads
// where its reader stands, as those of /proc do.
func (p *Policy) planted(link string) bool {
	for _, dir := range p.planting {
		if within(link, dir) {
			return true
		}
	}
	return !cleanPath(link)
}

// settle puts together what the rules say to all names.
func (p *Policy) settle(s *subject, said opinions) (Decision, reason) {
	d := p.fallback(defaultCommand)
	why := reason{about: s.program.Path}
	switch {
	case said.certain != nil:
		d = Decision{Effect: said.certain.Effect, Rule: said.certain}
	case said.closing != nil:
		d = Decision{Effect: said.closing.Effect, Rule: said.closing}
	case s.program.Path == "" && d.Permits():
		d, why.text = Decision{}, "the program was not found"
	}
	if said.doubtful != nil && strictness[said.doubtful.Effect] < strictness[d.Effect] {
		d = Decision{Effect: said.doubtful.Effect, Rule: said.doubtful}
		why = reason{about: s.program.Called}
	}
	return d, why
}

// stricterRule returns the stricter of two rules, the earlier argument when
// they are alike; nil is no opinion.
func stricterRule(a, b *Rule) *Rule {
	if a == nil || b != nil && strictness[b.Effect] < strictness[a.Effect] {
		return b
	}
	return a
}

// first returns the first rule that is about a name, an absolute path or a
// base name, and about the rest of the request. identical says that the
// program only has the same content as the file of that name.
func (p *Policy) first(name string, s *subject, identical bool) *Rule {
	if name == "" {
		return nil
	}
	rules := p.groups[GroupCommand].rules
	id := p.commands.first(name, func(id int32) bool {
		c := rules[id].command
		return (!identical || !c.byName) && c.selects(s, name, rules[id].Effect)
	})
	if id == none {
		return nil
	}
	return rules[id]
}

// selects reports whether everything but the program's name, by which its
// option grammar is known, fits.
func (c *commandMatch) selects(s *subject, name string, effect Effect) bool {
	q := s.request
	switch {
	case q.Depth < c.depth.min || c.depth.max >= 0 && q.Depth > c.depth.max:
		return false
	case c.tty != 0 && (c.tty > 0) != q.Interactive:
		return false
	case len(c.parent) > 0 && !matchesAny(c.parent, q.Parent):
		return false
	case len(c.ancestor) > 0 && !c.matchesAncestor(q.Ancestors):
		return false
	case len(c.cwd) > 0 && !c.matchesCwd(q.Cwd):
		return false
	}
	var args []string
	if len(s.argv) > 1 {
		args = s.argv[1:]
	}
	if len(c.patterns) > 0 && !c.matchesJoined(args, effect) {
		return false
	}
	return c.words == nil || matchWords(c.words, name, args, c.wordsAll)
}

func (c *commandMatch) matchesAncestor(ancestors []string) bool {
	for _, a := range ancestors {
		if matchesAny(c.ancestor, a) {
			return true
		}
	}
	return false
}

func (c *commandMatch) matchesCwd(cwd string) bool {
	for _, g := range c.cwd {
		if g.Match(cwd) {
			return true
		}
	}
	return false
}

// maxJoined is the longest argument text that patterns are tried on, in bytes.
// Longer ones match every rule that refuses and none that permits.
const maxJoined = 2 << 20

func (c *commandMatch) matchesJoined(args []string, effect Effect) bool {
	total := 0
	for _, a := range args {
		total += len(a) + 1
	}
	if total > maxJoined {
		return !effect.permits()
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
	for _, re := range c.patterns {
		if re.Match(text) {
			return true
		}
	}
	return false
}

// joined keeps the space arguments are joined in, which is used on every exec
// that a rule with patterns is about.
var joined = sync.Pool{New: func() any { return new([]byte) }}

// runsFrom reports whether exec_from, if given, allows a program's directory.
func (p *Policy) runsFrom(file string) bool {
	if len(p.execFrom) == 0 {
		return true
	}
	for _, g := range p.execFrom {
		if file != "" && g.Match(file) {
			return true
		}
	}
	return false
}

// calledName is the called name as rules see it: a path when it is one.
func (p *Policy) calledName(s *subject) string {
	called := s.program.Called
	if called == "" || called[0] == '/' || !strings.Contains(called, "/") {
		return called
	}
	if s.request.Cwd == "" {
		return base(called)
	}
	return path.Join(s.request.Cwd, called)
}

// trustworthy reports whether a link of that name could not have been made by
// a command: it did not come with the workspace, and stands in a directory
// where the file rules let nobody make or replace anything.
func (p *Policy) trustworthy(name string) bool {
	if p.planted(name) {
		return false
	}
	const planting = OpCreate | OpSymlink | OpRename | OpLink
	if p.fileRule(name, planting) == nil {
		return p.fallback(defaultFileWrite).Effect == Deny
	}
	for op := OpRead; op <= planting; op <<= 1 {
		if planting&op == 0 {
			continue
		}
		effect := p.fallback(defaultFileWrite).Effect
		if rule := p.fileRule(name, op); rule != nil {
			effect = rule.Effect
		}
		if effect != Deny {
			return false
		}
	}
	return true
}

// fileRule is the first rule about an operation on a path.
func (p *Policy) fileRule(name string, op FileOp) *Rule {
	rules := p.groups[GroupFile].rules
	id := p.files.First(name, none, func(id int32) bool { return rules[id].file.ops&op != 0 })
	if id == none {
		return nil
	}
	return rules[id]
}
