package policy

import (
	"slices"

	"agentsh/policy/glob"
)

// commandIndex finds the command rules about a name: literal ones by hashing,
// globs by their literal parts.
type commandIndex struct {
	names     map[string][]int32 // by base name
	nameGlobs *glob.Set
	paths     *glob.Set
}

// index prepares what decisions look up.
func (p *Policy) index() {
	ix := &p.commands
	ix.names = map[string][]int32{}
	var names, paths, files, domains []glob.Numbered
	for i, rule := range p.groups[GroupCommand].rules {
		if rule.Env != nil {
			rule.filter = p.mergeFilter(&rule.command.env)
		}
		for _, e := range rule.command.entries {
			n := glob.Numbered{Glob: e.glob, ID: int32(i)}
			literals, ok := e.glob.Literals()
			switch {
			case e.path:
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
	for i, rule := range p.groups[GroupFile].rules {
		for _, g := range rule.file.paths {
			files = append(files, glob.Numbered{Glob: g, ID: int32(i)})
		}
	}
	p.files = glob.NewSet(glob.Path, files)
	for i, rule := range p.groups[GroupNetwork].rules {
		m := rule.network
		if !m.hosts || m.any || len(m.addresses) > 0 {
			p.anyHost = append(p.anyHost, int32(i))
			continue
		}
		for _, g := range m.domains {
			domains = append(domains, glob.Numbered{Glob: g, ID: int32(i)})
		}
	}
	p.domains = glob.NewSet(glob.Host, domains)
	var sockets, abstract []glob.Numbered
	for i, rule := range p.groups[GroupUnixSocket].rules {
		for _, g := range rule.socket.paths {
			sockets = append(sockets, glob.Numbered{Glob: g, ID: int32(i)})
		}
		for _, g := range rule.socket.abstract {
			abstract = append(abstract, glob.Numbered{Glob: g, ID: int32(i)})
		}
	}
	p.sockets, p.abstract = glob.NewSet(glob.Path, sockets), glob.NewSet(glob.Text, abstract)
}

// none is the number no rule has.
const none = int32(1<<31 - 1)

// first returns the first rule about a name, an absolute path or a base name,
// that accept takes.
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

// DeniedPrograms are the names and path globs of the command rules that do not
// permit and go by content: a program of the same content as a file one of
// them names is judged as that file. Entries for every program are left out,
// since they name none. Sorted.
func (p *Policy) DeniedPrograms() []string {
	var out []string
	for _, rule := range p.groups[GroupCommand].rules {
		if rule.Effect.permits() || rule.command.byName {
			continue
		}
		for _, e := range rule.command.entries {
			if !e.all() {
				out = append(out, e.glob.String())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
