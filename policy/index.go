package policy

import (
	"agentsh/policy/glob"
)

// commandIndex finds the command rules for a program name. Literal names are
// hashed. Globs are indexed by their literal parts.
type commandIndex struct {
	names     map[string][]int32 // by base name
	nameGlobs *glob.Set
	paths     *glob.Set
}

func newCommandIndex(rules []*Rule) commandIndex {
	ix := commandIndex{names: map[string][]int32{}}
	var names, paths []glob.Numbered
	for i, rule := range rules {
		for _, e := range rule.Command.Programs {
			n := glob.Numbered{Glob: e.Glob, ID: int32(i)}
			literals, ok := e.Glob.Literals()
			switch {
			case e.WholePath:
				paths = append(paths, n)
			case !ok:
				names = append(names, n)
			default:
				for _, l := range literals {
					ix.names[l] = append(ix.names[l], int32(i))
				}
			}
		}
	}
	ix.nameGlobs, ix.paths = glob.NewSet(glob.Text, names), glob.NewSet(glob.Path, paths)
	return ix
}

// none is a rule number that no rule has.
const none = int32(1<<31 - 1)

// first returns the first rule that matches a name and that accept returns true
// for. name is an absolute path or a base name.
func (ix *commandIndex) first(name string, accept func(int32) bool) int32 {
	short := base(name)
	found := none
	for _, id := range ix.names[short] {
		if accept(id) {
			found = id
			break
		}
	}
	found = ix.nameGlobs.First(short, found, accept)
	if name[0] == '/' {
		found = ix.paths.First(name, found, accept)
	}
	return found
}
