package policy

import (
	"math/bits"
	"path"
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/policy/glob"
)

// fileMatch is what a file rule selects.
type fileMatch struct {
	paths []*glob.Glob
	ops   FileOp
	alias string // a word of opAliases that was used, for lint
}

// opWords are the names of the operations, in the order of their bits.
var opWords = []string{
	"read", "write", "create", "delete", "rename", "list", "stat", "chmod", "chown", "link",
	"symlink", "mkdir", "rmdir", "mknod", "xattr", "utime", "execute",
}

// opAliases are further words for operations: a file is opened to read or to
// write it, which are judged, and a link is read by looking at it.
var opAliases = map[string]FileOp{"*": OpAll, "open": OpRead, "readlink": OpStat}

// String lists the operations of the set, "read,write", or "none".
func (op FileOp) String() string {
	if op&OpAll == 0 {
		return "none"
	}
	if op&(op-1) == 0 {
		return opWords[bits.TrailingZeros32(uint32(op))]
	}
	var words []string
	for i, w := range opWords {
		if op&(1<<i) != 0 {
			words = append(words, w)
		}
	}
	return strings.Join(words, ",")
}

// ParseFileOp reads one operation as file_rules name it; "*" is all of them.
func ParseFileOp(word string) (FileOp, bool) {
	for i, w := range opWords {
		if w == word {
			return 1 << i, true
		}
	}
	op, ok := opAliases[word]
	return op, ok
}

func fileKeys() []key[draft] {
	words := append(append([]string{}, opWords...), "*", "open", "readlink")
	return append(commonKeys(Allow, Deny, Audit, Approve, Redirect, SoftDelete), []key[draft]{
		{
			field{
				name:     "paths",
				doc:      "Globs of absolute paths inside the sandbox, links resolved; dir/** is dir and all below it.",
				shape:    listOf(shape{}),
				required: true,
			},
			func(r *reader, n *yaml.Node, d *draft) { d.rule.file.paths = r.paths(n) },
		},
		{
			field{
				name:     "operations",
				doc:      "The operations the rule is about; * is all of them.",
				shape:    listOf(shape{words: words}),
				required: true,
			},
			readOperations,
		},
		{field{name: "redirect_to", doc: "The directory a redirected file is written to instead."}, func(r *reader, n *yaml.Node, d *draft) {
			d.redirect = n
			if d.rule.Redirect == nil {
				d.rule.Redirect = &RedirectTo{}
			}
			s, ok := r.expanded(n)
			if ok && (!path.IsAbs(s) || path.Clean(s) != s) {
				r.fail(n, "", "redirect_to is a clean absolute path of a directory")
			}
			d.rule.Redirect.Path = s
		}},
		{
			field{name: "preserve_tree", doc: "Keep the directories of the original path below redirect_to.", shape: shape{kind: shapeBool}},
			func(r *reader, n *yaml.Node, d *draft) {
				if d.rule.Redirect == nil {
					d.rule.Redirect = &RedirectTo{}
				}
				d.rule.Redirect.PreserveTree, _ = r.flag(n)
			},
		},
	}...)
}

func readOperations(r *reader, n *yaml.Node, d *draft) {
	words := append(append([]string{}, opWords...), "*", "open", "readlink")
	for _, l := range r.texts(n) {
		if i, ok := r.word(l.node, "operation", words); ok {
			op, _ := ParseFileOp(words[i])
			if words[i] == "open" || words[i] == "readlink" {
				d.rule.file.alias = words[i]
			}
			d.rule.file.ops |= op
		}
	}
}

var readFileRules = func(r *reader, n *yaml.Node, doc *document) {
	readRules(GroupFile, fileKeys(), func(rule *Rule) { rule.file = &fileMatch{} }, finishFile)(r, n, doc)
}

func finishFile(r *reader, n *yaml.Node, d *draft) {
	rule := d.rule
	if rule.Redirect != nil && d.redirect == nil {
		r.fail(n, "", "preserve_tree without redirect_to")
	}
	if rule.Effect == SoftDelete && rule.file.ops&^(OpDelete|OpRmdir|OpRename|OpWrite|OpCreate) != 0 {
		r.fail(
			n,
			"name delete, rmdir, rename, write or create",
			"soft_delete cannot apply to %s",
			rule.file.ops&^(OpDelete|OpRmdir|OpRename|OpWrite|OpCreate),
		)
	}
	if rule.Effect == Redirect && rule.file.ops&^(OpWrite|OpCreate|OpMkdir) != 0 {
		r.fail(n, "name write, create or mkdir", "redirect cannot apply to %s", rule.file.ops&^(OpWrite|OpCreate|OpMkdir))
	}
}
