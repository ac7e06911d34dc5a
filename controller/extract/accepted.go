package extract

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	"agentsh/controller/scan"
	"agentsh/internal/statedir"
)

// Refused is a commit of the agent that is not extracted. Commits that build on it are
// not extracted either.
type Refused struct {
	Commit string `json:"commit"` // id
	Branch string `json:"branch"` // of the agent: HEAD, or refs/heads/NAME
	Rule   string `json:"rule"`   // scan.RuleRepository or scan.RuleObject
	Reason string `json:"reason"`
}

// checker decides which commits of a scratch repository may be extracted.
type checker struct {
	in     Input
	at     scratch
	repo   string            // the scratch repository
	unsafe map[string]string // commit id to reason why its files must not be extracted
	tries  int
}

// acceptableTips returns the tips, each with its newest acceptable commit. All
// ancestors of such a commit are acceptable too. A branch without one is omitted. The
// refs of the scratch repository are updated accordingly.
func (in Input) acceptableTips(ctx context.Context, tips []tip, at scratch) ([]tip, []Refused, error) {
	c := &checker{in: in, at: at, repo: filepath.Join(at.work, "repo")}
	var err error
	if c.unsafe, err = in.guard().commits(ctx, c.repo, tips); err != nil {
		return nil, nil, err
	}
	var sound []tip
	var refused []Refused
	for _, t := range tips {
		list, err := c.line(ctx, t)
		if err != nil {
			return nil, nil, err
		}
		// A commit that builds on a refused commit is refused. So binary search finds
		// the first acceptable commit of a list, newest first.
		var failed error
		reasons := map[int]*Refused{}
		n := sort.Search(len(list), func(i int) bool {
			why, err := c.check(ctx, list[i])
			if err != nil && failed == nil {
				failed = err
			}
			reasons[i] = why
			return why == nil
		})
		if failed != nil {
			return nil, nil, failed
		}
		if n > 0 { // the search has looked at the one before the first acceptable one
			why := *reasons[n-1]
			why.Commit, why.Branch = list[n-1], t.ref
			refused = append(refused, why)
		}
		if n < len(list) {
			t.id = list[n]
			sound = append(sound, t)
		}
	}
	return sound, refused, nil
}

// line lists the new commits of a tip along first parents, newest first. It lists at
// most [maxCommits].
func (c *checker) line(ctx context.Context, t tip) ([]string, error) {
	args := []string{"rev-list", "--first-parent", fmt.Sprintf("--max-count=%d", maxCommits), t.id}
	if c.in.Base != "" {
		args = append(args, "^"+c.in.Base)
	}
	out, err := c.in.host(ctx, c.repo, args...)
	return strings.Fields(out), err
}

// check returns why a commit may not be extracted; nil: it may.
func (c *checker) check(ctx context.Context, id string) (*Refused, error) {
	if why, err := c.unsafeBelow(ctx, id); err != nil || why != "" {
		return &Refused{Rule: scan.RuleRepository, Reason: why}, err
	}
	if _, err := c.in.host(ctx, c.repo, "update-ref", "refs/try", id); err != nil {
		return nil, err
	}
	err := c.try(ctx)
	if err != nil && !strings.Contains(err.Error(), aboutObject) && ctx.Err() == nil {
		err = c.try(ctx) // git named no object: it may be this host, whose disk was full
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, new(hostError)):
		return nil, err
	case err == nil:
		return nil, nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return nil, err
	}
	if full := statedir.CheckRoom(c.at.work, trialRoom); full != nil && !strings.Contains(err.Error(), aboutObject) {
		return nil, errors.Join(full, err)
	}
	return &Refused{Rule: scan.RuleObject, Reason: objectReason(err.Error())}, nil
}

// trialRoom is the room that a trial has on a disk that is not full, in bytes.
const trialRoom = 1 << 20

// hostError is an error of this host, whatever the commits are.
type hostError struct{ error }

func (e hostError) Unwrap() error { return e.error }

// try fetches the commit of refs/try into a repository of its own, which checks its objects.
func (c *checker) try(ctx context.Context) error {
	c.tries++
	trial, err := c.in.borrowing(ctx, c.at, fmt.Sprintf("trial-%d", c.tries))
	if err != nil {
		return hostError{err}
	}
	_, err = c.in.host(ctx, trial, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
		c.repo, "refs/try:refs/heads/try")
	if removed := os.RemoveAll(trial); removed != nil {
		return hostError{errors.Join(removed, err)}
	}
	return err
}

// aboutObject stands in an error of git before the object that it refuses.
const aboutObject = ": object "

// objectReason returns git's reason for refusing an object.
func objectReason(text string) string {
	if _, about, found := strings.Cut(text, aboutObject); found {
		return "git refuses the object " + about
	}
	return text
}

// unsafeBelow returns the reason of an unsafe commit among id and its new ancestors;
// empty: there is none.
func (c *checker) unsafeBelow(ctx context.Context, id string) (string, error) {
	if len(c.unsafe) == 0 {
		return "", nil
	}
	args := []string{"rev-list", id}
	if c.in.Base != "" {
		args = append(args, "^"+c.in.Base)
	}
	out, err := c.in.host(ctx, c.repo, args...)
	for commit := range strings.FieldsSeq(out) {
		if why := c.unsafe[commit]; why != "" {
			return why, err
		}
	}
	return "", err
}
