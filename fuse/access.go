package fuse

import (
	"strings"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// access decides operations on the files of one mount by policy, and reports what has
// to be reported.
type access struct {
	files     *files
	rules     *current
	approvals *approvals
	reporter  *reporter
}

// Rules is what the server needs of a policy; *[policy.Policy] is one. Evaluate
// is called for every operation and must be fast and safe for concurrent use.
type Rules interface {
	Evaluate(policy.Request) (policy.Decision, policy.Diagnostic)
	Tree(root string, ops policy.FileOp) policy.TreeVerdict
	Roots() []string
	Rules(policy.Group) []*policy.Rule
	GitGuard() (on bool, at policy.Position)
}

// query is one operation on one path relative to the mount.
type query struct {
	op  policy.FileOp
	rel string
}

// verdict is the decision on a query.
type verdict struct {
	query
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

func (a *access) decide(q query) verdict { return a.decideBy(a.rules.now(), q) }

func (a *access) decideBy(r *ruleset, q query) verdict {
	dec, diag := r.policy.Evaluate(&policy.FileRequest{Path: a.files.inside(q.rel), Op: q.op})
	if dec.Effect == policy.Deny && dec.Rule == nil && q.op == policy.OpStat && a.traversable(r, q.rel) {
		dec = policy.Decision{Effect: policy.Allow}
	}
	return verdict{q, dec, diag}
}

// traversable reports paths whose attributes are shown although no rule is about stat:
//   - directories above what the policy allows,
//   - what the policy allows,
//   - the entries of a directory that may be listed.
func (a *access) traversable(r *ruleset, rel string) bool {
	if rel == "" && a.files.backing.Dir {
		return true
	}
	path := a.files.inside(rel)
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

// strictest decides all queries of one request and returns the strictest verdict. What
// a person allowed for the request of the thread counts as allowed.
func (a *access) strictest(tid uint32, queries ...query) verdict {
	worst := verdict{dec: policy.Decision{Effect: policy.Allow}}
	rules := a.rules.now()
	for _, q := range queries {
		v := a.decideBy(rules, q)
		if v.dec.Effect == policy.Approve && a.approvals.allowed(tid, q) {
			continue
		}
		if strictness(v.dec.Effect) > strictness(worst.dec.Effect) {
			worst = v
		}
	}
	return worst
}

// permit decides all queries of one request by the strictest verdict. Effects that only
// some operations support deny here. The event has the caller's thread id and target.
func (a *access) permit(tid uint32, target string, queries ...query) gofuse.Status {
	return a.apply(tid, target, a.strictest(tid, queries...))
}

// apply turns a verdict into a status and reports it where it must be.
func (a *access) apply(tid uint32, target string, v verdict) gofuse.Status {
	switch v.dec.Effect {
	case policy.Allow:
		return gofuse.OK
	case policy.Audit:
		a.report(tid, target, v)
		return gofuse.OK
	case policy.Approve:
		switch {
		case a.approvals.allowed(tid, v.query):
			return gofuse.OK
		case a.approvals.can(tid):
			a.approvals.wait(tid, v)
			return statusAsk
		}
		v.dec.Effect = policy.Deny
		v.diag.Message = strings.TrimSpace(v.diag.Message + " (" + approveWords + ")")
	case policy.Redirect:
		v.diag.Message = strings.TrimSpace(
			v.diag.Message + " (redirect applies only to files that are created, written or moved to the name, and to directories that are created)",
		)
	case policy.SoftDelete:
		v.diag.Message = strings.TrimSpace(v.diag.Message + " (soft_delete applies only to delete, rmdir, write and replaced names)")
	}
	v.dec.Effect = policy.Deny
	a.report(tid, target, v)
	return gofuse.EACCES
}

// permitAll decides operations on all the paths whose rules hold for a node.
func (a *access) permitAll(tid uint32, all []string, ops ...policy.FileOp) gofuse.Status {
	if len(all) == 0 {
		return gofuse.Status(syscall.ESTALE)
	}
	return a.permit(tid, "", product(all, ops...)...)
}

// refuse reports a refusal that no rule of the policy made.
func (a *access) refuse(tid uint32, q query, message, hint string) gofuse.Status {
	a.report(tid, "", verdict{q, policy.Decision{}, policy.Diagnostic{Message: message, Hint: hint}})
	return gofuse.EPERM
}

// report makes an event of a verdict on this mount.
func (a *access) report(tid uint32, target string, v verdict) {
	e := wire.Event{
		Path:     a.files.inside(v.rel),
		Target:   target,
		Op:       v.op.String(),
		Decision: v.dec.Effect.String(),
		Message:  v.diag.Message,
		Hint:     v.diag.Hint,
	}
	if v.dec.Rule != nil {
		e.Rule = v.dec.Rule.At()
	}
	a.reporter.add(report{tid: tid, event: e})
}

// keepDenials refuses a new name if it permits an operation that the old name denies.
func (a *access) keepDenials(tid uint32, from, to string) gofuse.Status {
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		if op&contentOps == 0 {
			continue
		}
		at := a.decide(query{op, from})
		if at.dec.Permits() || at.dec.Effect == policy.Redirect && a.files.redirected(from) {
			continue
		}
		if a.decide(query{op, to}).dec.Permits() {
			at.dec.Effect = policy.Deny
			at.diag.Hint = "the new name would lift a denial that holds for the old one; copy the file if it may be read"
			a.report(tid, a.files.inside(to), at)
			return gofuse.EACCES
		}
	}
	return gofuse.OK
}

// alike reports whether the decision on a directory that moves holds for every entry
// below it: the rules are uniform in both trees, and the second allows to create any
// kind of entry.
func (a *access) alike(from, to string) bool {
	const made = policy.OpCreate | policy.OpMkdir | policy.OpSymlink | policy.OpMknod
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		a, b := a.rules.now().policy.Tree(a.files.inside(from), op), a.rules.now().policy.Tree(a.files.inside(to), op)
		if !a.Uniform || !b.Uniform || op&made != 0 && b.Effect != policy.Allow {
			return false
		}
	}
	return true
}

// namesOnly reports a mount of which the policy shows attributes at most.
func (a *access) namesOnly(r Rules) bool {
	if a.files.backing.Dir {
		v := r.Tree(a.files.path, policy.OpAll&^policy.OpStat)
		return v.Uniform && v.Effect == policy.Deny
	}
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		if dec, _ := r.Evaluate(&policy.FileRequest{Path: a.files.path, Op: op}); op != policy.OpStat && dec.Effect != policy.Deny {
			return false
		}
	}
	return true
}

// listsSilently reports whether no listing needs an event or a question, so that the
// kernel may answer from its cache. A denied listing is never in that cache: a refusal
// is not cached, and a directory that moves to where listing is denied is removed from
// it ([renamer.forgetListings]).
func (a *access) listsSilently() bool {
	return silent(a.rules.now().policy)
}

// refuseFolding denies a directory whose names are without case.
func (a *access) refuseFolding(tid uint32, rel string) gofuse.Status {
	const reason = "names in this directory are without case: a rule about one spelling would not apply to another"
	return a.refuse(tid, query{policy.OpStat, rel}, reason, "")
}

// parentPath is the directory of a clean absolute path.
func parentPath(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

// unlisted reports a name that a listing leaves out, because a rule denies its attributes.
func (v verdict) unlisted() bool { return v.dec.Effect == policy.Deny }

// product returns a query for every operation on every path.
func product(paths []string, ops ...policy.FileOp) []query {
	queries := make([]query, 0, len(paths)*len(ops))
	for _, op := range ops {
		for _, rel := range paths {
			queries = append(queries, query{op, rel})
		}
	}
	return queries
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

// contentOps are the operations that [access.keepDenials] compares: what is denied under
// the old name must not be permitted under the new one.
const contentOps = policy.OpAll &^ (policy.OpRename | policy.OpCreate | policy.OpMkdir | policy.OpSymlink |
	policy.OpMknod | policy.OpLink)
