package policy

import (
	"math/bits"
	"strings"

	"agentsh/policy/glob"
)

// fileRules evaluates file requests.
type fileRules struct {
	rules       []*Rule
	paths       *glob.Set
	read, write Effect // where no rule matches
}

func newFileRules(rules []*Rule, d Defaults) fileRules {
	var paths []glob.Numbered
	for i, rule := range rules {
		for _, g := range rule.File.Paths {
			paths = append(paths, glob.Numbered{Glob: g, ID: int32(i)})
		}
	}
	return fileRules{rules: rules, paths: glob.NewSet(glob.Path, paths), read: orDeny(d.FileRead), write: orDeny(d.FileWrite)}
}

func (f *fileRules) decide(q *FileRequest) (Decision, reason) {
	if !cleanPath(q.Path) {
		return Decision{}, reason{text: "the path is not absolute and resolved"}
	}
	if q.Op == 0 || q.Op&(q.Op-1) != 0 || q.Op&OpAll == 0 {
		return Decision{}, reason{text: "the operation is not known"}
	}
	if rule := f.rule(q.Path, q.Op); rule != nil {
		return Decision{Effect: rule.Effect, Rule: rule}, reason{}
	}
	return Decision{Effect: f.other(q.Op)}, reason{}
}

// fileReads are the operations that defaults.file_read governs.
const fileReads = OpRead | OpList | OpStat

// other returns the default effect of an operation.
func (f *fileRules) other(op FileOp) Effect {
	if op&fileReads != 0 {
		return f.read
	}
	return f.write
}

// rule returns the first rule that matches an operation on a path, or nil.
func (f *fileRules) rule(name string, op FileOp) *Rule {
	id := f.paths.First(name, none, func(id int32) bool { return f.rules[id].File.Ops&op != 0 })
	if id == none {
		return nil
	}
	return f.rules[id]
}

// FileSelector has the conditions of a file rule.
type FileSelector struct {
	Paths []*glob.Glob
	Ops   FileOp
	Alias string // the last of open and readlink that the file names, for lint
}

// FileOpNames lists the names of the operations in the order of their bits.
var FileOpNames = []string{
	"read", "write", "create", "delete", "rename", "list", "stat", "chmod", "chown", "link",
	"symlink", "mkdir", "rmdir", "mknod", "xattr", "utime", "execute",
}

// opAliases maps further names to operations. An open is checked as read or
// write. Reading a link is checked as stat.
var opAliases = map[string]FileOp{"*": OpAll, "open": OpRead, "readlink": OpStat}

// String returns the operations of the set as a list, for example "read,write",
// or "none".
func (op FileOp) String() string {
	if op&OpAll == 0 {
		return "none"
	}
	if op&(op-1) == 0 {
		return FileOpNames[bits.TrailingZeros32(uint32(op))]
	}
	var words []string
	for i, w := range FileOpNames {
		if op&(1<<i) != 0 {
			words = append(words, w)
		}
	}
	return strings.Join(words, ",")
}

// ParseFileOp returns the operation of a name in file_rules. "*" is every
// operation. ok is false for an unknown name.
func ParseFileOp(word string) (FileOp, bool) {
	for i, w := range FileOpNames {
		if w == word {
			return 1 << i, true
		}
	}
	op, ok := opAliases[word]
	return op, ok
}
