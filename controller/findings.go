package controller

import (
	"fmt"
	"path"
	"path/filepath"

	"agentsh/controller/harness"
	"agentsh/controller/scan"
)

// defaultReviewLabel is the label of a harness that names none.
const defaultReviewLabel = "needs-review"

// failOpenHint is the hint if a scan stops a run before the agent starts.
const failOpenHint = "look at the findings, or write security: {fail_mode: open} in the harness to run all the same"

// maxResultFindings bounds the findings that a result lists.
const maxResultFindings = 500

// findings are the findings of all scans of a run.
type findings struct {
	security harness.Security
	trace    string // id that the findings of a run share; empty: none
	progress progress

	list     []scan.Finding
	critical int // critical findings, including those not listed
	review   *Review
}

func newFindings(s harness.Security, trace string, p progress) *findings {
	return &findings{security: s, trace: trace, progress: p, list: []scan.Finding{}}
}

// add adds findings, with file names relative to dir, and prints warnings for
// severe ones. Findings beyond the bound are counted, but not listed.
func (f *findings) add(dir string, found []scan.Finding) {
	for _, x := range found {
		x.File, x.Trace = path.Join(filepath.ToSlash(dir), x.File), f.trace
		if x.Severity == scan.Critical {
			f.critical++
		}
		if len(f.list) < maxResultFindings || x.Severity == scan.Critical && f.critical == 1 {
			f.list = append(f.list, x)
			if x.Severity >= scan.High {
				f.progress.warn("scan: %s", x)
			}
		}
	}
}

// check fails if there are more than before critical findings, unless the
// harness sets fail_mode: open.
func (f *findings) check(before int, hint string) error {
	n := f.critical - before
	if n > 0 {
		f.askReview()
	}
	if n == 0 || f.security.FailMode.V == harness.FailOpen {
		return nil
	}
	last := scan.Finding{}
	for _, x := range f.list {
		if x.Severity == scan.Critical {
			last = x // the last one belongs to this scan
		}
	}
	return fail(ExitScan, hint, fmt.Errorf("%d critical finding(s): %s", n, last))
}

// askReview requests a review of the run by a person, if the harness enables
// it.
func (f *findings) askReview() {
	e := f.security.Escalation
	if e.OnCritical.V != harness.OnCriticalReview || f.review != nil {
		return
	}
	f.review = &Review{Label: e.ReviewLabel.Or(defaultReviewLabel)}
	f.progress.warn("a person is to review this run: %s", f.review.Label)
}

// into writes the findings into the result. A nil receiver belongs to a run
// that ended before its scans.
func (f *findings) into(r *Result) {
	if f != nil {
		r.Findings, r.Review = f.list, f.review
	}
}
