package harness

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/url"
	"path/filepath"
	"strings"

	"agentsh/controller/fetch"
	"agentsh/internal/strictyaml"
)

// remote is a fetched file with the store of those that belong to it.
type remote struct {
	store  fetch.Store
	pinned fetch.Pinned
}

// fetchBase fetches the base of a file. It returns the name of the copy, and nil
// after a problem.
func (l *Loader) fetchBase(f *file, root string, ps *Problems) (string, *remote) {
	at := f.base.at
	store := fetch.Store{Dir: l.options.Cache, Allowed: append(f.allowed(), configured(root)...)}
	p, err := fetch.ParsePinned(f.base.text)
	switch {
	case err != nil:
		ps.errorf(at, RuleBase, "the base %s: %v", quoted(f.base.text), err)
		ps.hint("write https://HOST/PATH#sha256=DIGEST")
		return "", nil
	case !store.Allows(p.URL):
		ps.errorf(at, RuleBase, "the base %s is below no URL of allowed_remote_resources", p.URL)
		ps.hint("write allowed_remote_resources: [https://%s/...], beside base or in config.yaml of the root", p.URL.Host)
		return "", nil
	case l.options.Cache == "":
		ps.errorf(at, RuleBase, "the base %s is fetched, and there is no directory for it", p.URL)
		ps.hint("set HOME or XDG_CACHE_HOME")
		return "", nil
	}
	name, err := store.Get(context.Background(), p)
	if err != nil {
		ps.errorf(at, RuleBase, "the base %s is not fetched: %v", p.URL, err)
		ps.hint("%s", fetchHint(err))
		return "", nil
	}
	return name, &remote{store, p}
}

// allowed are the prefixes of URLs that a file allows.
func (f *file) allowed() []string {
	var out []string
	if list := f.top.get("allowed_remote_resources"); list != nil {
		for _, t := range list.items {
			out = append(out, t.text)
		}
	}
	return out
}

// configured are the prefixes of URLs that config.yaml of the root allows. Its
// other keys are those of other programs.
func configured(root string) []string {
	name := filepath.Join(root, "config.yaml")
	data, err := ReadFile(name)
	if err != nil {
		return nil
	}
	n, _ := parse(name, data)
	var out []string
	if list := strictyaml.Value(n, "allowed_remote_resources"); list != nil && list.Kind == strictyaml.List {
		for _, c := range list.Content {
			out = append(out, c.Value)
		}
	}
	return out
}

// localize fetches the files that a fetched file names, and puts the names of
// their copies in place of its paths.
func (r remote) localize(f *file) {
	blocks := []*tree{f.top}
	for _, forge := range f.order {
		if b := f.forges[forge]; b != nil {
			blocks = append(blocks, b)
		}
	}
	for _, o := range f.overlays {
		blocks = append(blocks, o.block)
	}
	for _, b := range blocks {
		leaves(fields, b, "", func(where string, of *field, t *tree) {
			switch {
			case where == "providers" || where == "openshell.profiles":
				for _, item := range t.items {
					if where != "providers" || isPathLike(item.text) {
						r.replace(&f.problems, where, item, "")
					}
				}
			case where == "skills.overrides":
				for _, name := range t.keys {
					r.replace(&f.problems, where, t.dict[name], "")
				}
			case where == "skills.path":
				r.replace(&f.problems, where, t, "SKILL.md")
			case where == "plugins.path":
				r.replace(&f.problems, where, t, "plugin.json")
			case where == "agent_input":
				f.problems.errorf(t.at, RuleBase, "agent_input is a directory, which is not fetched")
			case of.path != notPath && of.path != pathDir:
				r.replace(&f.problems, where, t, "")
			}
		})
	}
}

// replace fetches one file. marker is the file of a directory that is fetched.
func (r remote) replace(ps *Problems, where string, t *tree, marker string) {
	if t.shape != shapeScalar || t.text == "" || isURL(t.text) || strings.Contains(t.text, "$") {
		return // known at the run
	}
	rel, mode := strings.TrimSuffix(t.text, "/"), 0o644
	if marker != "" {
		rel += "/" + marker
		ps.warnf(t.at, RuleNoEffect, "%s: of a directory of a fetched base only %s is fetched", where, marker)
		ps.hint("keep a copy of the directory beneath the root if it has more files")
	}
	if strings.HasSuffix(where, "script") {
		mode = 0o755
	}
	name, err := r.store.Companion(context.Background(), r.pinned, rel, fs.FileMode(mode))
	if err != nil {
		ps.errorf(t.at, RuleBase, "%s: %s of the fetched base: %v", where, clip(t.text), err)
		ps.hint("%s", fetchHint(err))
		return
	}
	t.text = strings.TrimSuffix(name, "/"+marker)
}

// fetchHint is what to do when a file could not be fetched.
func fetchHint(err error) string {
	var unknown x509.UnknownAuthorityError
	var answer *url.Error
	switch {
	case errors.Is(err, fetch.ErrContent):
		return "read the new content; if it is wanted, write its digest after #sha256="
	case errors.As(err, &unknown):
		return "add the authority to those of this machine, or name its file in SSL_CERT_FILE"
	case errors.As(err, &answer):
		return "see whether this machine reaches the server, or keep a copy of the file beneath the root and name that"
	}
	return ""
}
