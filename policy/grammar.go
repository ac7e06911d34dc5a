package policy

import (
	"slices"
	"strings"
)

// grammar is what is known of a program's options: enough to take bundles
// apart, to tell values from operands and to know two spellings of one option.
type grammar struct {
	flags    string            // letters that take no value
	valued   string            // letters that take one
	attached string            // letters whose value, if any, is attached
	long     []string          // long options that take no value, or only an attached one
	values   []string          // long options that take a value
	same     map[byte]string   // the long spelling of a letter
	sub      map[string]string // grammar name after the first operand, "*" for any other
	strict   bool              // options end at the first operand
	words    bool              // one dash begins a whole word: no bundles
}

// grammars is the small built-in table. Options that are not listed are taken
// for flags.
var grammars = map[string]*grammar{
	"rm":    {flags: "rRfiIdv", long: []string{"--recursive", "--force", "--dir", "--verbose", "--interactive", "--one-file-system", "--preserve-root", "--no-preserve-root"}, same: map[byte]string{'r': "--recursive", 'R': "--recursive", 'f': "--force", 'd': "--dir", 'v': "--verbose"}},
	"rmdir": {flags: "pv", long: []string{"--parents", "--verbose", "--ignore-fail-on-non-empty"}, same: map[byte]string{'p': "--parents", 'v': "--verbose"}},
	"mkdir": {flags: "pvZ", valued: "m", values: []string{"--mode"}, long: []string{"--parents", "--verbose"}, same: map[byte]string{'p': "--parents", 'm': "--mode", 'v': "--verbose"}},
	"chmod": {flags: "Rcfv", values: []string{"--reference"}, long: []string{"--recursive", "--changes", "--quiet", "--silent", "--verbose"}, same: map[byte]string{'R': "--recursive", 'f': "--quiet", 'c': "--changes", 'v': "--verbose"}},
	"chown": {flags: "RcfvhHLP", values: []string{"--reference", "--from"}, long: []string{"--recursive", "--changes", "--quiet", "--silent", "--verbose", "--no-dereference", "--dereference"}, same: map[byte]string{'R': "--recursive", 'f': "--quiet", 'h': "--no-dereference", 'v': "--verbose"}},
	"cp":    {flags: "abdfiHlLnPpRrsTuvxZ", valued: "tS", values: []string{"--target-directory", "--suffix"}, long: []string{"--archive", "--force", "--recursive", "--link", "--symbolic-link", "--no-clobber", "--parents", "--preserve", "--update", "--verbose", "--backup"}, same: map[byte]string{'a': "--archive", 'f': "--force", 'r': "--recursive", 'R': "--recursive", 'l': "--link", 's': "--symbolic-link", 'n': "--no-clobber", 't': "--target-directory", 'u': "--update", 'v': "--verbose"}},
	"mv":    {flags: "bfinTuvZ", valued: "tS", values: []string{"--target-directory", "--suffix"}, long: []string{"--force", "--no-clobber", "--update", "--verbose", "--backup", "--interactive"}, same: map[byte]string{'f': "--force", 'n': "--no-clobber", 't': "--target-directory", 'u': "--update", 'v': "--verbose"}},
	"ln":    {flags: "bdfFiLnPrsTv", valued: "tS", values: []string{"--target-directory", "--suffix"}, long: []string{"--symbolic", "--force", "--relative", "--no-dereference", "--verbose"}, same: map[byte]string{'s': "--symbolic", 'f': "--force", 'r': "--relative", 'n': "--no-dereference", 't': "--target-directory"}},
	"tar": {flags: "AcdrtuxjJzZaOkUvpPhlmSswW", valued: "fCTXbIgKNVLF", values: []string{"--file", "--directory", "--files-from", "--exclude-from", "--use-compress-program", "--to-command", "--checkpoint-action", "--info-script", "--new-volume-script", "--rsh-command", "--rmt-command", "--transform", "--exclude", "--owner", "--group", "--mode"},
		long: []string{"--create", "--extract", "--get", "--list", "--append", "--delete", "--checkpoint", "--absolute-names", "--to-stdout"}, same: map[byte]string{'c': "--create", 'x': "--extract", 't': "--list", 'r': "--append", 'f': "--file", 'C': "--directory", 'T': "--files-from", 'I': "--use-compress-program", 'P': "--absolute-names", 'F': "--info-script", 'O': "--to-stdout"}},
	"sed":  {flags: "nErsuz", valued: "efl", attached: "i", values: []string{"--expression", "--file", "--line-length"}, long: []string{"--in-place", "--quiet", "--silent", "--regexp-extended", "--sandbox", "--separate"}, same: map[byte]string{'e': "--expression", 'f': "--file", 'i': "--in-place", 'n': "--quiet", 's': "--separate"}},
	"find": {words: true},
	"curl": {flags: "0123456789aBfgGiIjJkLlMnNOpqRsSvVZ#", valued: "AbcCdDeEFHhKmoPQrtTuUwxXyYz",
		values: []string{"--user-agent", "--cookie", "--cookie-jar", "--data", "--data-raw", "--data-binary", "--data-urlencode", "--data-ascii", "--json", "--dump-header", "--form", "--header", "--config", "--max-time", "--output", "--output-dir", "--quote", "--range", "--upload-file", "--user", "--write-out", "--proxy", "--request", "--resolve", "--connect-to", "--url", "--cert", "--key", "--cacert", "--unix-socket", "--interface", "--referer"},
		long:   []string{"--fail", "--get", "--head", "--include", "--insecure", "--location", "--remote-name", "--silent", "--show-error", "--verbose", "--compressed"},
		same:   map[byte]string{'A': "--user-agent", 'b': "--cookie", 'c': "--cookie-jar", 'd': "--data", 'D': "--dump-header", 'F': "--form", 'H': "--header", 'K': "--config", 'o': "--output", 'O': "--remote-name", 'T': "--upload-file", 'u': "--user", 'w': "--write-out", 'x': "--proxy", 'X': "--request", 'k': "--insecure", 'L': "--location", 'I': "--head", 'G': "--get", 'f': "--fail", 's': "--silent", 'S': "--show-error", 'v': "--verbose", 'i': "--include", 'r': "--range", 'Q': "--quote", 'e': "--referer", 'E': "--cert"}},
	"wget": {flags: "bcdFhkKmNpqrSvxEHL046", valued: "aeioOPQtTUwAlRDIXY", values: []string{"--output-document", "--output-file", "--append-output", "--execute", "--input-file", "--directory-prefix", "--post-data", "--post-file", "--body-data", "--body-file", "--method", "--header", "--user", "--password", "--use-askpass"},
		long: []string{"--recursive", "--mirror", "--no-check-certificate", "--quiet", "--continue"}, same: map[byte]string{'O': "--output-document", 'o': "--output-file", 'a': "--append-output", 'e': "--execute", 'i': "--input-file", 'P': "--directory-prefix", 'r': "--recursive", 'm': "--mirror", 'q': "--quiet", 'c': "--continue"}},
	"ssh": {flags: "46AaCfGgKkMNnqsTtVvXxYy", valued: "BbcDEeFIiJLlmOoPpQRSWw", strict: true},
	"git": {flags: "pPvh", valued: "Cc", strict: true, values: []string{"--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix", "--attr-source"},
		long: []string{"--exec-path", "--html-path", "--paginate", "--no-pager", "--bare", "--no-replace-objects", "--literal-pathspecs", "--no-optional-locks"},
		sub:  map[string]string{"push": "git push", "commit": "git commit", "clean": "git clean", "rm": "git rm", "reset": "git reset", "branch": "git branch", "checkout": "git checkout", "config": "git config", "*": "git *"}},
	"git *": {},
	"git push": {flags: "nfuvq46d", valued: "o", values: []string{"--repo", "--receive-pack", "--exec", "--push-option"},
		long: []string{"--all", "--branches", "--prune", "--mirror", "--delete", "--tags", "--follow-tags", "--force", "--force-with-lease", "--force-if-includes", "--no-force-with-lease", "--signed", "--atomic", "--dry-run", "--porcelain", "--set-upstream", "--thin", "--no-thin", "--quiet", "--verbose", "--progress", "--no-verify", "--verify", "--recurse-submodules", "--ipv4", "--ipv6"},
		same: map[byte]string{'n': "--dry-run", 'f': "--force", 'u': "--set-upstream", 'v': "--verbose", 'q': "--quiet", 'd': "--delete", 'o': "--push-option"}},
	"git commit": {flags: "apevqsnioz", valued: "mFCct", attached: "uS", values: []string{"--message", "--file", "--author", "--date", "--reuse-message", "--reedit-message", "--template", "--fixup", "--squash", "--cleanup"},
		long: []string{"--all", "--amend", "--no-verify", "--verify", "--allow-empty", "--no-edit", "--signoff", "--no-gpg-sign", "--gpg-sign"}, same: map[byte]string{'a': "--all", 'm': "--message", 'F': "--file", 'n': "--no-verify", 's': "--signoff", 'S': "--gpg-sign", 'C': "--reuse-message", 'c': "--reedit-message", 't': "--template"}},
	"git clean":    {flags: "dfinqxX", valued: "e", values: []string{"--exclude"}, long: []string{"--force", "--dry-run", "--interactive", "--quiet"}, same: map[byte]string{'f': "--force", 'n': "--dry-run", 'e': "--exclude", 'i': "--interactive", 'q': "--quiet"}},
	"git rm":       {flags: "fnrq", long: []string{"--force", "--dry-run", "--cached", "--quiet", "--ignore-unmatch"}, same: map[byte]string{'f': "--force", 'n': "--dry-run", 'q': "--quiet"}},
	"git reset":    {flags: "qpN", long: []string{"--hard", "--soft", "--mixed", "--merge", "--keep", "--quiet", "--patch", "--intent-to-add"}, same: map[byte]string{'q': "--quiet", 'p': "--patch", 'N': "--intent-to-add"}},
	"git branch":   {flags: "dDmMcCfrailvqt", valued: "u", values: []string{"--set-upstream-to", "--contains", "--merged", "--sort"}, long: []string{"--delete", "--move", "--copy", "--force", "--remotes", "--all", "--list"}, same: map[byte]string{'d': "--delete", 'm': "--move", 'c': "--copy", 'f': "--force", 'r': "--remotes", 'a': "--all", 'l': "--list", 'u': "--set-upstream-to"}},
	"git checkout": {flags: "flmpqtd", valued: "bB", values: []string{"--orphan", "--conflict"}, long: []string{"--force", "--quiet", "--track", "--detach", "--ours", "--theirs", "--merge", "--patch"}, same: map[byte]string{'f': "--force", 'q': "--quiet", 't': "--track", 'd': "--detach", 'm': "--merge", 'p': "--patch"}},
	"git config":   {flags: "lez", valued: "f", values: []string{"--file", "--blob", "--type", "--default"}, long: []string{"--global", "--system", "--local", "--worktree", "--add", "--unset", "--unset-all", "--get", "--list", "--edit"}, same: map[byte]string{'f': "--file", 'l': "--list", 'e': "--edit"}},
}

// grammarOf is the grammar of a program by its path or name; nil when nothing
// is known of it.
func grammarOf(program string) *grammar { return grammars[base(program)] }

// argWord is one word of an argument list, taken apart.
type argWord struct {
	option   bool
	name     string // operand, or the option as it was written without its value
	letter   string // "-f" when the option came out of a bundle, else empty
	long     string // the long spelling of a letter, if there is one
	value    string
	hasValue bool
	unknown  bool // an option that is not in the table
	inner    bool // it stands behind a subcommand
}

// argReader takes an argument list apart.
type argReader struct {
	grammar *grammar // nil: nothing is known
	args    []string
	bundle  string // letters still to come out of one word
	ended   bool   // past -- or past the first operand of a strict grammar
	dashes  bool   // past --
	started bool   // past the first operand
	inner   bool   // past a subcommand
}

// next returns the next word.
func (a *argReader) next() (argWord, bool) {
	if a.bundle != "" {
		return a.fromBundle(), true
	}
	if len(a.args) == 0 {
		return argWord{}, false
	}
	word := a.args[0]
	a.args = a.args[1:]
	switch {
	case a.ended || len(word) < 2 || word[0] != '-':
		a.operand(word)
		return argWord{name: word}, true
	case word == "--":
		a.ended, a.dashes = true, true
		return a.next()
	case strings.HasPrefix(word, "--"):
		return a.long(word), true
	case a.grammar == nil || a.grammar.words:
		return plainOption(word), true
	}
	a.bundle = word[1:]
	return a.fromBundle(), true
}

// operand notes an operand: the first may be a subcommand with options of its
// own.
func (a *argReader) operand(word string) {
	if a.started || a.grammar == nil {
		a.started = true
		return
	}
	a.started = true
	if a.grammar.sub != nil {
		a.inner = true
		name, ok := a.grammar.sub[word]
		if !ok {
			name = a.grammar.sub["*"]
		}
		a.grammar = grammars[name]
		return
	}
	a.ended = a.ended || a.grammar.strict
}

func plainOption(word string) argWord {
	name, value, has := strings.Cut(word, "=")
	return argWord{option: true, name: name, value: value, hasValue: has, unknown: true}
}

// long reads a long option and, where its grammar says so, takes its value.
func (a *argReader) long(word string) argWord {
	w := plainOption(word)
	w.inner = a.inner
	w.unknown = a.grammar == nil || !knows(a.grammar, w.name)
	if !w.hasValue && a.grammar != nil && takesValue(a.grammar, w.name) && len(a.args) > 0 {
		w.value, w.hasValue = a.args[0], true
		a.args = a.args[1:]
	}
	return w
}

// takesValue reports whether a long option, or the only one it abbreviates,
// takes a value.
func takesValue(g *grammar, name string) bool {
	if contains(g.values, name) {
		return true
	}
	if contains(g.long, name) {
		return false
	}
	valued, plain := 0, 0
	for _, l := range g.values {
		if strings.HasPrefix(l, name) {
			valued++
		}
	}
	for _, l := range g.long {
		if strings.HasPrefix(l, name) {
			plain++
		}
	}
	return valued > 0 && plain == 0
}

// knows reports whether a long option, or one it abbreviates, is in the table.
func knows(g *grammar, name string) bool {
	begins := func(l string) bool { return strings.HasPrefix(l, name) }
	return slices.ContainsFunc(g.long, begins) || slices.ContainsFunc(g.values, begins)
}

var letters [128]string

func init() {
	for i := range letters {
		letters[i] = "-" + string(rune(i))
	}
}

// letterless reports whether a letter is not in the table.
func (g *grammar) letterless(c byte) bool {
	return strings.IndexByte(g.flags, c) < 0 && strings.IndexByte(g.valued, c) < 0 && strings.IndexByte(g.attached, c) < 0
}

// fromBundle takes the next letter out of a bundle.
func (a *argReader) fromBundle() argWord {
	c := a.bundle[0]
	rest := a.bundle[1:]
	a.bundle = ""
	if c >= 128 {
		return argWord{option: true, name: "-" + string(c) + rest}
	}
	w := argWord{option: true, name: letters[c], letter: letters[c], long: a.grammar.same[c], inner: a.inner}
	switch {
	case a.grammar.letterless(c):
		w.unknown = true
		a.bundle = rest
	case strings.IndexByte(a.grammar.attached, c) >= 0:
		w.value, w.hasValue = rest, rest != ""
	case strings.IndexByte(a.grammar.valued, c) < 0:
		a.bundle = rest
	case rest != "":
		w.value, w.hasValue = rest, true
	case len(a.args) > 0:
		w.value, w.hasValue = a.args[0], true
		a.args = a.args[1:]
	}
	return w
}
