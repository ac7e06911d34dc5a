package fuse

import (
	"strings"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// Rules is what the server needs of a policy; *[policy.Policy] is one. Evaluate
// is called for every operation and must be fast and safe for concurrent use.
type Rules interface {
	Evaluate(policy.Request) (policy.Decision, policy.Diagnostic)
	Tree(root string, ops policy.FileOp) policy.TreeVerdict
	Roots() []string
	Rules(policy.Group) []*policy.Rule
	GitGuard() (on bool, at policy.Position)
}

// ask is one operation on one path relative to the mount.
type ask struct {
	op  policy.FileOp
	rel string
}

// verdict is the answer to an ask.
type verdict struct {
	ask
	dec  policy.Decision
	diag policy.Diagnostic
}

// strictness orders effects; the strictest of several verdicts holds.
func strictness(e policy.Effect) int {
	switch e {
	case policy.Allow:
		return 0
	case policy.Audit:
		return 1
	case policy.Redirect:
		return 2
	case policy.SoftDelete:
		return 3
	case policy.Approve:
		return 4
	default:
		return 5
	}
}

// inside is the path of rel as the sandbox sees it.
func (m *mount) inside(rel string) string {
	switch {
	case rel == "":
		return m.path
	case m.path == "/":
		return "/" + rel
	}
	return m.path + "/" + rel
}

func (m *mount) decide(a ask) verdict { return m.decideBy(m.rules.now(), a) }

func (m *mount) decideBy(r *ruleset, a ask) verdict {
	dec, diag := r.policy.Evaluate(&policy.FileRequest{Path: m.inside(a.rel), Op: a.op})
	if dec.Effect == policy.Deny && dec.Rule == nil && a.op == policy.OpStat && m.traversable(r, a.rel) {
		dec = policy.Decision{Effect: policy.Allow}
	}
	return verdict{a, dec, diag}
}

// traversable reports paths whose attributes are shown although no rule speaks
// of stat: the way to what the policy lets through, what it lets through, and
// what a listing names.
func (m *mount) traversable(r *ruleset, rel string) bool {
	if rel == "" && m.backing.dir {
		return true
	}
	path := m.inside(rel)
	if dec, _ := r.policy.Evaluate(&policy.FileRequest{Path: parentPath(path), Op: policy.OpList}); rel != "" && dec.Effect != policy.Deny {
		return true
	}
	for _, root := range r.roots {
		if root == path || strings.HasPrefix(root, path) && root[len(path)] == '/' {
			return true
		}
	}
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		if op == policy.OpStat {
			continue
		}
		dec, _ := r.policy.Evaluate(&policy.FileRequest{Path: path, Op: op})
		if dec.Effect != policy.Deny {
			return true
		}
	}
	return false
}

// parentPath is the directory of a clean absolute path.
func parentPath(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

// unlisted reports names that a listing leaves out: a rule denies their
// attributes, so that a program could do nothing with the name but fail.
func (v verdict) unlisted() bool { return v.dec.Effect == policy.Deny }

// weigh decides all asks of one request and returns the strictest verdict.
// What a person allowed for the request of the thread counts as allowed.
func (m *mount) weigh(tid uint32, asks ...ask) verdict {
	worst := verdict{dec: policy.Decision{Effect: policy.Allow}}
	rules := m.rules.now()
	for _, a := range asks {
		v := m.decideBy(rules, a)
		if v.dec.Effect == policy.Approve && m.asks.allowed(tid, a) {
			continue
		}
		if strictness(v.dec.Effect) > strictness(worst.dec.Effect) {
			worst = v
		}
	}
	return worst
}

// permit decides all asks of one request by the strictest verdict. Effects that
// only some operations know deny here. The caller's thread id and the second
// name are for the event.
func (m *mount) permit(tid uint32, target string, asks ...ask) gofuse.Status {
	return m.settle(tid, target, m.weigh(tid, asks...))
}

// settle turns a verdict into a status and reports it where it must be.
func (m *mount) settle(tid uint32, target string, v verdict) gofuse.Status {
	switch v.dec.Effect {
	case policy.Allow:
		return gofuse.OK
	case policy.Audit:
		m.report(tid, target, v)
		return gofuse.OK
	case policy.Approve:
		switch {
		case m.asks.allowed(tid, v.ask):
			return gofuse.OK
		case m.asks.can(tid):
			m.asks.wait(tid, v)
			return statusAsk
		}
		v.dec.Effect = policy.Deny
		v.diag.Message = strings.TrimSpace(v.diag.Message + " (" + approveWords + ")")
	case policy.Redirect:
		v.diag.Message = strings.TrimSpace(
			v.diag.Message + " (redirect knows files that are made, written or moved to the name, and directories that are made)",
		)
	case policy.SoftDelete:
		v.diag.Message = strings.TrimSpace(v.diag.Message + " (soft_delete knows delete, rmdir, write and names that are replaced)")
	}
	v.dec.Effect = policy.Deny
	m.report(tid, target, v)
	return gofuse.EACCES
}

// permitNode decides operations on all the paths that bind a node.
func (m *mount) permitNode(tid uint32, n *node, ops ...policy.FileOp) gofuse.Status {
	_, all := m.tree.bindings(n)
	if len(all) == 0 {
		return gofuse.Status(syscall.ESTALE)
	}
	return m.permit(tid, "", product(all, ops...)...)
}

// product asks every operation on every path.
func product(paths []string, ops ...policy.FileOp) []ask {
	asks := make([]ask, 0, len(paths)*len(ops))
	for _, op := range ops {
		for _, rel := range paths {
			asks = append(asks, ask{op, rel})
		}
	}
	return asks
}

// refuse reports a refusal that no rule of the policy made.
func (m *mount) refuse(tid uint32, a ask, message, hint string) gofuse.Status {
	m.report(tid, "", verdict{a, policy.Decision{}, policy.Diagnostic{Message: message, Hint: hint}})
	return gofuse.EPERM
}

// createOp is the operation that makes a file of the given mode.
func createOp(mode uint32) policy.FileOp {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return policy.OpMkdir
	case unix.S_IFLNK:
		return policy.OpSymlink
	case unix.S_IFREG:
		return policy.OpCreate
	default:
		return policy.OpMknod
	}
}
