package fuse

import (
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// access evaluates the policy for operations on the files of one mount. It reports the
// decisions that need an event.
type access struct {
	files     *files
	rules     *current
	approvals *approvals
	reporter  *reporter
	silent    atomic.Pointer[silentPart] // of the rules that were last used
}

// Rules is the part of a policy that the server uses; [*policy.Policy] implements it.
// The server calls Evaluate for every operation. Evaluate must be fast and safe for
// concurrent use.
type Rules interface {
	Evaluate(policy.Request) (policy.Decision, policy.Diagnostic)
	Tree(root string, ops policy.FileOp) policy.TreeVerdict
	Roots() []string
	Rules(policy.Group) []*policy.Rule
	GitGuard() (on bool, at policy.Position)
}

// query is one operation on one path. The path is relative to the mount.
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

// strictness orders effects. Of several verdicts the strictest applies.
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
	if q.op&silentOps != 0 && a.silentIn(r).has(q.rel) {
		return verdict{query: q, dec: policy.Decision{Effect: policy.Allow}}
	}
	dec, diag := r.policy.Evaluate(&policy.FileRequest{Path: a.files.inside(q.rel), Op: q.op})
	if dec.Effect == policy.Deny && dec.Rule == nil && q.op == policy.OpStat && a.traversable(r, q.rel) {
		dec = policy.Decision{Effect: policy.Allow}
	}
	return verdict{q, dec, diag}
}

// silentPart is the part of a mount in which the rules allow silentOps on everything, without an
// event. There no rule is evaluated for each name. Paths are relative to the mount.
type silentPart struct {
	rules  *ruleset // to which it belongs
	none   bool     // nothing is in it
	except []string // not in it, with all that is below
}

const (
	silentOps = policy.OpRead | policy.OpList | policy.OpStat
	maxExcept = 16 // each path is compared with all of them; with more, nothing is in the silent part
)

// silentIn returns the silent part of the mount. It is found once for each set of rules.
func (a *access) silentIn(r *ruleset) *silentPart {
	if p := a.silent.Load(); p != nil && p.rules == r {
		return p
	}
	v := r.policy.Tree(a.files.path, silentOps)
	p := &silentPart{rules: r, none: v.Effect != policy.Allow || len(v.Except) > maxExcept}
	for _, path := range v.Except {
		rel := strings.TrimPrefix(strings.TrimPrefix(path, a.files.path), "/")
		p.none = p.none || rel == ""
		p.except = append(p.except, rel)
	}
	a.silent.Store(p)
	return p
}

// has reports whether a path is in the silent part.
func (p *silentPart) has(rel string) bool {
	return !p.none && !slices.ContainsFunc(p.except, func(e string) bool { return within(rel, e) })
}

// hasEntries reports whether all entries of a directory are in the silent part.
func (p *silentPart) hasEntries(rel string) bool {
	return p.has(rel) && !slices.ContainsFunc(p.except, func(e string) bool { return within(e, rel) })
}

// within reports whether a clean path is dir or below it. "" is the directory of a mount.
func within(path, dir string) bool {
	return dir == "" || strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/')
}

// traversable reports whether a path shows its attributes although no rule mentions
// stat. That applies to:
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
		if within(root, path) {
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

// strictest evaluates all queries of one request and returns the strictest verdict. An
// operation that a person approved for the thread's request counts as allowed.
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

// permit evaluates all queries of one request and applies the strictest verdict.
// Effects that only some operations support count as a denial here. The event contains
// the caller's thread id and target.
func (a *access) permit(tid uint32, target string, queries ...query) gofuse.Status {
	return a.apply(tid, target, a.strictest(tid, queries...))
}

// apply turns a verdict into a status and reports it if an event is due.
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

// permitAll evaluates operations on all the paths whose rules apply to a node.
func (a *access) permitAll(tid uint32, all []string, ops ...policy.FileOp) gofuse.Status {
	if len(all) == 0 {
		return gofuse.Status(syscall.ESTALE)
	}
	return a.permit(tid, "", product(all, ops...)...)
}

// refuse denies a query for a reason that is not a rule of the policy, and reports it.
func (a *access) refuse(tid uint32, q query, message, hint string) gofuse.Status {
	a.report(tid, "", verdict{q, policy.Decision{}, policy.Diagnostic{Message: message, Hint: hint}})
	return gofuse.EPERM
}

// report sends a verdict on this mount to the event stream.
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

// alike reports whether the decision on a moved directory applies to every entry below
// it. That is so if the rules are uniform in both trees and the second tree allows to
// create any kind of entry.
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

// namesOnly reports whether the policy shows at most attributes of this mount.
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

// listsSilently reports whether no listing needs an event or an approval. The kernel
// may then answer listings from its cache. That cache never contains a denied listing:
// a refusal is not cached. A directory that moves to a path where listing is denied is
// removed from the cache ([renamer.forgetListings]).
func (a *access) listsSilently() bool {
	return silent(a.rules.now().policy)
}

// refuseFolding denies access to a case-insensitive directory.
func (a *access) refuseFolding(tid uint32, rel string) gofuse.Status {
	const reason = "names in this directory are without case: a rule about one spelling would not apply to another"
	return a.refuse(tid, query{policy.OpStat, rel}, reason, "")
}

// parentPath returns the directory of a clean absolute path.
func parentPath(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

// unlisted reports whether a listing omits a name. v is the verdict on its attributes.
// That is so where they are denied, and where a rule denies reading and listing: tar, cp -r
// and git add open all that is listed, and fail where they may not. stat still shows it.
func (a *access) unlisted(v verdict) bool {
	if v.dec.Effect == policy.Deny {
		return true
	}
	denied := func(op policy.FileOp) bool {
		d := a.decide(query{op, v.rel}).dec
		return d.Effect == policy.Deny && d.Rule != nil
	}
	return denied(policy.OpRead) && denied(policy.OpList)
}

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

// createOp returns the operation that creates a file of the given mode.
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

// contentOps are the operations that [access.keepDenials] compares. The new name must
// not permit an operation that the old name denies.
const contentOps = policy.OpAll &^ (policy.OpRename | policy.OpCreate | policy.OpMkdir | policy.OpSymlink |
	policy.OpMknod | policy.OpLink)
