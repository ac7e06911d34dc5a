package syntax

import (
	"path"

	"agentsh/internal/strictyaml"
	"agentsh/policy"
)

func fileKeys() []key[draft] {
	words := append(append([]string{}, policy.FileOpNames...), "*", "open", "readlink")
	return append(commonKeys(policy.Allow, policy.Deny, policy.Audit, policy.Approve, policy.Redirect, policy.SoftDelete), []key[draft]{
		{
			field{
				name:     "paths",
				doc:      "Globs of absolute paths inside the sandbox, links resolved; dir/** is dir and all below it.",
				shape:    listOf(shape{}),
				required: true,
			},
			func(r *reader, n *strictyaml.Node, d *draft) { d.rule.File.Paths = r.paths(n) },
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
		{
			field{name: "redirect_to", doc: "The directory a redirected file is written to instead."},
			func(r *reader, n *strictyaml.Node, d *draft) {
				d.redirect = n
				if d.rule.Redirect == nil {
					d.rule.Redirect = &policy.RedirectTo{}
				}
				s, ok := r.expanded(n)
				if ok && (!path.IsAbs(s) || path.Clean(s) != s) {
					r.Fail(n, "", "redirect_to is a clean absolute path of a directory")
				}
				d.rule.Redirect.Path = s
			},
		},
		{
			field{name: "preserve_tree", doc: "Keep the directories of the original path below redirect_to.", shape: shape{kind: shapeBool}},
			func(r *reader, n *strictyaml.Node, d *draft) {
				if d.rule.Redirect == nil {
					d.rule.Redirect = &policy.RedirectTo{}
				}
				d.rule.Redirect.PreserveTree, _ = r.Bool(n)
			},
		},
	}...)
}

func readOperations(r *reader, n *strictyaml.Node, d *draft) {
	words := append(append([]string{}, policy.FileOpNames...), "*", "open", "readlink")
	for _, l := range r.texts(n) {
		if i, ok := r.Word(l.node, "operation", words); ok {
			op, _ := policy.ParseFileOp(words[i])
			if words[i] == "open" || words[i] == "readlink" {
				d.rule.File.Alias = words[i]
			}
			d.rule.File.Ops |= op
		}
	}
}

var readFileRules = func(r *reader, n *strictyaml.Node, doc *document) {
	readRules(policy.GroupFile, fileKeys(), func(rule *policy.Rule) { rule.File = &policy.FileSelector{} }, finishFile)(r, n, doc)
}

func finishFile(r *reader, n *strictyaml.Node, d *draft) {
	rule := d.rule
	if rule.Redirect != nil && d.redirect == nil {
		r.Fail(n, "", "preserve_tree without redirect_to")
	}
	if rule.Effect == policy.SoftDelete &&
		rule.File.Ops&^(policy.OpDelete|policy.OpRmdir|policy.OpRename|policy.OpWrite|policy.OpCreate) != 0 {
		r.Fail(
			n,
			"name delete, rmdir, rename, write or create",
			"soft_delete cannot apply to %s",
			rule.File.Ops&^(policy.OpDelete|policy.OpRmdir|policy.OpRename|policy.OpWrite|policy.OpCreate),
		)
	}
	if rule.Effect == policy.Redirect && rule.File.Ops&^(policy.OpWrite|policy.OpCreate|policy.OpMkdir) != 0 {
		r.Fail(n, "name write, create or mkdir", "redirect cannot apply to %s", rule.File.Ops&^(policy.OpWrite|policy.OpCreate|policy.OpMkdir))
	}
}
