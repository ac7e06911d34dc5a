package main

import (
	"strings"
	"testing"
)

// TestCommitsOfARunHaveTheNameOfTheirAuthor: an agent commits under its role, or under the
// name that the harness or the agent sets. Other repositories of the sandbox have the
// operator's name.
func TestCommitsOfARunHaveTheNameOfTheirAuthor(t *testing.T) {
	t.Parallel()
	const own = `env:
  sandbox:
    GIT_AUTHOR_NAME: Agent
    GIT_AUTHOR_EMAIL: agent@example.org
    GIT_COMMITTER_NAME: Agent
    GIT_COMMITTER_EMAIL: agent@example.org
`
	for name, tt := range map[string]struct{ harness, script, want string }{
		"role":    {want: "tester <tester@agentctl.invalid>, tester <tester@agentctl.invalid>"},
		"harness": {harness: own, want: "Agent <agent@example.org>, Agent <agent@example.org>"},
		"agent": {
			script: "git config user.name Own && git config user.email own@example.org; ",
			want:   "Own <own@example.org>, Own <own@example.org>",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, tt.script+`
echo two >a.txt; git commit -q -a -m two
git config --get-regexp alias >"$AGENTSH_OUTPUT_DIR/more"
git init -q /tmp/other && cd /tmp/other && env -u GIT_AUTHOR_NAME -u GIT_AUTHOR_EMAIL git var GIT_AUTHOR_IDENT >"$AGENTSH_OUTPUT_DIR/other"`, tt.harness)
			p.write("home/.gitconfig", "[user]\n\tname = Day Work\n\temail = day@example.org\n[alias]\n\tx = status\n", 0o644)
			p.setenv = append(p.setenv, "HOME="+p.path("home"))
			r, code := p.run()
			if code != 0 || len(r.Commits) != 1 {
				t.Fatalf("exit %d: %+v", code, r)
			}
			if got := p.git("log", "-1", "--format=%an <%ae>, %cn <%ce>", r.Branch); got != tt.want {
				t.Errorf("the commit is by %s, want %s", got, tt.want)
			}
			if other := p.read("out/output/other"); !strings.HasPrefix(other, "Day Work <day@example.org> ") {
				t.Errorf("another repository has the identity %s", other)
			}
			if more := p.read("out/output/more"); strings.TrimSpace(more) != "" {
				t.Errorf("settings of the operator came in: %s", more)
			}
		})
	}
}
