package syntax

import (
	"regexp"
	"slices"
	"strings"

	"agentsh/internal/mistake"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/policy/glob"
)

var identityWords = []string{"content", "name"}

func commandKeys() []key[draft] {
	return append(commonKeys(policy.Allow, policy.Deny, policy.Audit, policy.Approve, policy.Redirect), []key[draft]{
		{field{name: "commands", doc: "Base names, or with a slash paths, of programs; globs in both.", shape: listOf(shape{}), required: true},
			func(r *reader, n *strictyaml.Node, d *draft) { d.rule.Command.Programs = r.names(r.texts(n), true) }},
		{
			field{
				name:  "args_patterns",
				doc:   "Go regular expressions, any of which must match the arguments joined by spaces.",
				shape: listOf(shape{}),
			},
			func(r *reader, n *strictyaml.Node, d *draft) { d.patterns = r.texts(n) },
		},
		{
			field{
				name: "args",
				doc: "Word patterns the arguments must match: operands in order, options anywhere, ** for any words, a|b for either; -c=!{a,b} " +
					"in a rule that refuses is -c with any other value.",
				shape: listOf(shape{}),
			},
			readArgs,
		},
		{field{name: "context", doc: "direct: asked for by the operator; nested: started by another command; or a range of depths.",
			shape: shape{
				words:  contextWords,
				others: []shape{listOf(shape{words: contextWords}), objectOf(func() []field { return fieldsOf(depthKeys) })},
			}}, readContext},
		{field{name: "when", doc: "Further conditions on who asks.", shape: objectOf(func() []field { return fieldsOf(whenKeys) })},
			func(r *reader, n *strictyaml.Node, d *draft) { readObject(r, n, "when", whenKeys, d.rule.Command) }},
		{field{name: "redirect_to", doc: "The program that runs instead.", shape: objectOf(func() []field { return fieldsOf(redirectKeys) })},
			func(r *reader, n *strictyaml.Node, d *draft) {
				d.redirect = n
				d.rule.Redirect = &policy.RedirectTo{}
				readObject(r, n, "redirect_to", redirectKeys, d.rule.Redirect)
			}},
		{
			field{name: "env_allow", doc: "As env_policy.allow, for this rule; both must let a variable through.", shape: listOf(shape{})},
			ruleEnv("allow"),
		},
		{field{name: "env_deny", doc: "As env_policy.deny, for this rule.", shape: listOf(shape{})}, ruleEnv("deny")},
		{field{name: "env_max_bytes", doc: "As env_policy.max_bytes, for this rule.", shape: shape{kind: shapeInt}}, ruleEnv("max_bytes")},
		{field{name: "env_max_keys", doc: "As env_policy.max_keys, for this rule.", shape: shape{kind: shapeInt}}, ruleEnv("max_keys")},
		{
			field{name: "env_block_iteration", doc: "Must be false: a command can always list its own variables.", shape: shape{kind: shapeBool}},
			ruleEnv("block_iteration"),
		},
		{
			field{
				name:  "limits",
				doc:   "As resource_limits, for this command; the stricter of both holds.",
				shape: objectOf(func() []field { return fieldsOf(commandLimitKeys()) }),
			},
			func(r *reader, n *strictyaml.Node, d *draft) {
				d.rule.Limits = &policy.Limits{}
				r.note(&d.settings, n, "resource_limits")
				readObject(r, n, "limits", commandLimitKeys(), d.rule.Limits)
			},
		},
		{
			field{
				name:  "identity",
				doc:   "content: a copy or link of a denied program is denied too; name: only its names are.",
				shape: shape{words: identityWords},
			},
			func(r *reader, n *strictyaml.Node, d *draft) {
				i, _ := r.Word(n, "identity", identityWords)
				d.rule.Command.NameOnly = i == 1
			},
		},
	}...)
}

// ruleEnv returns the reader of an env_* key of a rule. name is the
// corresponding key of env_policy.
func ruleEnv(name string) func(*reader, *strictyaml.Node, *draft) {
	return func(r *reader, n *strictyaml.Node, d *draft) {
		s := &d.rule.Command.Env
		s.Given = true
		envKeys[findKey(envKeys, name)].read(r, n, s)
	}
}

var readCommandRules = func(r *reader, n *strictyaml.Node, doc *document) {
	readRules(policy.GroupCommand, commandKeys(), func(rule *policy.Rule) {
		rule.Command = &policy.CommandSelector{Depth: policy.DepthRange{Min: 0, Max: -1}}
	}, finishCommand)(r, n, doc)
}

func finishCommand(r *reader, n *strictyaml.Node, d *draft) {
	c := d.rule.Command
	c.AllArgs = d.rule.Effect.Permits()
	c.AllPrograms = slices.ContainsFunc(c.Programs, policy.ProgramName.All)
	if c.Args != nil && len(c.Args) == 0 && !c.AllArgs {
		r.Fail(n, "allow the forms without arguments first", "args: [] in a rule that does not allow selects nothing")
	}
	for _, w := range c.Args {
		if len(w.Except) > 0 && c.AllArgs {
			r.Fail(
				n,
				"write -c=VALUE for what is allowed, or keep =! in a rule before it that denies",
				"word %q: =! is for rules that refuse",
				strictyaml.Shorten(w.Text),
			)
		}
	}
	if c.Env.Given {
		filter := c.Env.Filter
		d.rule.Env = &env.Filter{Allow: filter.Allow, Deny: filter.Deny, MaxBytes: filter.MaxBytes, MaxKeys: filter.MaxKeys}
	}
	for _, l := range d.patterns {
		if re := r.argsPattern(l, d.rule.Effect); re != nil {
			c.Patterns = append(c.Patterns, re)
			c.PatternTexts = append(c.PatternTexts, l.text)
		}
	}
}

// argsPattern compiles one of args_patterns. In a deny rule "." also matches a
// newline. Otherwise a newline in an argument would hide the text after it.
func (r *reader) argsPattern(l located, effect policy.Effect) *regexp.Regexp {
	text, err := expand(l.text, r.vars, regexp.QuoteMeta)
	if err != nil {
		r.Fail(l.node, "", "pattern %q: %v", strictyaml.Shorten(l.text), err)
		return nil
	}
	whole := text
	if !effect.Permits() {
		whole = "(?s:" + text + ")"
	}
	re, err := regexp.Compile(whole)
	if err == nil {
		return re
	}
	if _, plain := regexp.Compile(text); plain != nil {
		err = plain // without the added anchors
	}
	hint := "it is a regular expression: a backslash before a special character makes it ordinary"
	if strings.HasPrefix(text, "*") {
		hint = "it is a regular expression, not a glob: begin it with .*"
	}
	r.Fail(l.node, hint, "%v", err)
	return nil
}

func readArgs(r *reader, n *strictyaml.Node, d *draft) {
	d.rule.Command.Args = []policy.ArgPattern{}
	if n.Kind == strictyaml.List && len(n.Content) == 0 {
		return // no arguments at all
	}
	if len(n.Content) > policy.MaxArgs {
		r.Fail(n, "", "args has %d words, the most is %d", len(n.Content), policy.MaxArgs)
		return
	}
	for _, l := range r.texts(n) {
		if r.mistaken(l.node, mistake.Word(l.text)) {
			continue
		}
		w, err := r.wordPattern(l)
		if err != nil {
			r.Fail(l.node, "", "word %q: %v", strictyaml.Shorten(l.text), err)
			continue
		}
		d.rule.Command.Args = append(d.rule.Command.Args, w)
	}
}

var contextWords = []string{"direct", "nested"}

var depthKeys = []key[policy.DepthRange]{
	{
		field{name: "min_depth", doc: "The least depth; 0 is a command the operator asked for.", shape: shape{kind: shapeInt}},
		func(r *reader, n *strictyaml.Node, d *policy.DepthRange) {
			v, _ := r.Int(n, 0, 1000)
			d.Min = int(v)
		},
	},
	{
		field{name: "max_depth", doc: "The greatest depth.", shape: shape{kind: shapeInt}},
		func(r *reader, n *strictyaml.Node, d *policy.DepthRange) {
			v, _ := r.Int(n, 0, 1000)
			d.Max = int(v)
		},
	},
}

func readContext(r *reader, n *strictyaml.Node, d *draft) {
	depth := &d.rule.Command.Depth
	if n.Kind == strictyaml.Mapping {
		readObject(r, n, "context", depthKeys, depth)
		if depth.Max >= 0 && depth.Max < depth.Min {
			r.Fail(n, "", "no depth is at least %d and at most %d", depth.Min, depth.Max)
		}
		return
	}
	var direct, nested bool
	for _, l := range r.oneOrMore(n) {
		i, ok := r.Word(l.node, "context", contextWords)
		direct = direct || ok && i == 0
		nested = nested || ok && i == 1
	}
	switch {
	case direct && !nested:
		*depth = policy.DepthRange{Min: 0, Max: 0}
	case nested && !direct:
		*depth = policy.DepthRange{Min: 1, Max: -1}
	}
}

var whenKeys = []key[policy.CommandSelector]{
	{
		field{name: "parent", doc: "Names or paths of the program that starts this one.", shape: oneOrList(shape{})},
		func(r *reader, n *strictyaml.Node, c *policy.CommandSelector) {
			c.Parents = r.names(r.oneOrMore(n), false)
		},
	},
	{
		field{name: "ancestor", doc: "Names or paths of any program above this one.", shape: oneOrList(shape{})},
		func(r *reader, n *strictyaml.Node, c *policy.CommandSelector) {
			c.Ancestors = r.names(r.oneOrMore(n), false)
		},
	},
	{
		field{name: "cwd", doc: "Path globs of the working directory.", shape: oneOrList(shape{})},
		func(r *reader, n *strictyaml.Node, c *policy.CommandSelector) {
			for _, l := range r.oneOrMore(n) {
				if g := r.pattern(l.node, glob.Path, l.text); g != nil {
					c.Dirs = append(c.Dirs, g)
				}
			}
		},
	},
	{
		field{name: "interactive", doc: "Whether the command has a terminal.", shape: shape{kind: shapeBool}},
		func(r *reader, n *strictyaml.Node, c *policy.CommandSelector) {
			on, ok := r.Bool(n)
			c.Terminal = -1
			if on || !ok {
				c.Terminal = 1
			}
		},
	},
}

var redirectKeys = []key[policy.RedirectTo]{
	{
		field{name: "command", doc: "The program to run: a name on the sandbox's PATH or an absolute path.", required: true},
		func(r *reader, n *strictyaml.Node, t *policy.RedirectTo) {
			s, ok := r.expanded(n)
			if words := strings.Fields(s); len(words) > 1 && !strings.Contains(s, "/") {
				r.Fail(n, "write command: "+words[0]+" and the rest in args", "redirect_to.command is one program, not a command line")
				return
			}
			if ok && r.mistaken(n, mistake.Around(s)) {
				return
			}
			if ok && (s == "" || strings.Contains(s, "/") && !strings.HasPrefix(s, "/")) {
				r.Fail(n, "", "redirect_to.command is a name or an absolute path")
			}
			t.Command = s
		},
	},
	{
		field{name: "args", doc: "Arguments before those of the request.", shape: listOf(shape{})},
		func(r *reader, n *strictyaml.Node, t *policy.RedirectTo) { t.Args = values(r.texts(n)) },
	},
	{
		field{name: "args_append", doc: "Arguments after those of the request.", shape: listOf(shape{})},
		func(r *reader, n *strictyaml.Node, t *policy.RedirectTo) { t.ArgsAppend = values(r.texts(n)) },
	},
	{
		field{name: "environment", doc: "Variables set for the replacement.", shape: shape{kind: shapeMap, item: &shape{}}},
		func(r *reader, n *strictyaml.Node, t *policy.RedirectTo) {
			t.Environment = map[string]string{}
			r.dictionary(n, func(name, value *strictyaml.Node) {
				if !validName(name.Value) {
					r.Fail(name, "", "%q is not the name of a variable", strictyaml.Shorten(name.Value))
				}
				if s, ok := r.Text(value); ok {
					t.Environment[name.Value] = s
				}
			})
		},
	},
}

// expanded reads a text and replaces its variables.
func (r *reader) expanded(n *strictyaml.Node) (string, bool) {
	s, ok := r.Text(n)
	if !ok {
		return "", false
	}
	s, err := expand(s, r.vars, func(v string) string { return v })
	if err != nil {
		r.Fail(n, "", "%v", err)
		return "", false
	}
	return s, true
}
