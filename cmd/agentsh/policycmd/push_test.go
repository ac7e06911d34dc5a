package policycmd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/policy/policytest"
)

// A push that would rewrite or delete: the commands make the branch main of the
// repository r.git go back to the first commit, or vanish.
const rewriting = "+refs/heads/*:refs/heads/*"

// gitHome is a configuration that makes every plain push a forced one.
const gitHome = `printf '[remote "origin"]\n\turl = '"$PWD"'/r.git\n\tpush = ` + rewriting + `\n'`

// What becomes of one way.
const (
	refused  = "refused"  // it works where nothing is refused, and not under the pack
	harmless = "harmless" // it rewrites nothing anywhere
	open     = "open"     // it works under the pack too: the protection of branches on the server holds it
)

// TestAPushThatRewritesIsRefused tries the ways to have git push rewrite shared
// history, with a real git and a real repository: under agent-sandbox, and under
// observe, which shows that the way works where nothing is refused. A way that
// changes its kind must be moved here, and the pack's description with it.
func TestAPushThatRewritesIsRefused(t *testing.T) {
	needSandbox(t)
	testenv.Need(t, testenv.Program("git"), testenv.Program("python3"))
	tests := []struct {
		name, script, want string
	}{
		{"an option", "git push --force origin main", refused},
		{"an abbreviated option", "git push --forc origin main", harmless}, // ambiguous since git 2.30
		{"an abbreviated lease", "git push --force-w origin main", refused},
		{"a short option in a bundle", "git push -uf origin main", refused},
		{"a lease", "git push --force-with-lease origin main", refused},
		{"an abbreviated mirror", "git push --mirr origin", refused},
		{"an abbreviated deletion", "git push --delet origin main", refused},
		{"a plus", "git push origin +main", refused},
		{"a plus in full", "git push origin +refs/heads/main:refs/heads/main", refused},
		{"a plus behind dashes", "git push -- origin +main; git push --end-of-options origin +main", refused},
		{"a plus at a path", "git push file://$PWD/r.git +main", refused},
		{"an empty side", "git push origin :main", refused},
		{"another directory", "cd / && git -C \"$OLDPWD\" push -f origin main", refused},
		{"a directory of git", "cd / && git --git-dir=\"$OLDPWD/.git\" push -f origin main", refused},
		{"after a local deletion", "git update-ref -d refs/remotes/origin/main; git push origin HEAD:refs/heads/main", harmless},
		{"below a shell", "sh -c 'git push -f origin main'", refused},
		{
			"below git",
			"git rebase -q --exec 'git push -f origin main' HEAD~1; git submodule foreach 'git push -f'; git bisect start; git bisect run git push -f origin main",
			refused,
		},
		{"an alias", "git -c alias.p='push -f' p origin main", refused},
		{"a setting as an option", "git -c remote.origin.push=" + rewriting + " push origin", refused},
		{"a section in capitals", "git -c REMOTE.origin.push=" + rewriting + " push origin", refused},
		{"a mirror as an option", "git -c Remote.origin.mirror=true push origin", refused},
		{"an included file", gitHome + " > c; git -c include.path=\"$PWD/c\" push origin", refused},
		{"a file included where it is", gitHome + " > c; git -c includeIf.gitdir:/.path=\"$PWD/c\" push origin", refused},
		{"a setting out of a variable", "X=" + rewriting + " git --config-env=remote.origin.push=X push origin", refused},
		{
			"a setting written",
			"git config remote.origin.push '" + rewriting + "'; git config REMOTE.origin.push '" + rewriting + "'; git push origin",
			refused,
		},
		{"the user's settings", gitHome + " > ~/.gitconfig; git push origin", refused},
		{"the user's settings elsewhere", "mkdir -p ~/.config/git; " + gitHome + " > ~/.config/git/config; git push origin", refused},
		{"the settings of another home", "mkdir h; " + gitHome + " > h/.gitconfig; HOME=$PWD/h git push origin", refused},
		{
			"the settings of another base directory",
			"mkdir -p x/git; " + gitHome + " > x/git/config; XDG_CONFIG_HOME=$PWD/x git push origin",
			refused,
		},
		{"GIT_CONFIG_GLOBAL", gitHome + " > c; GIT_CONFIG_GLOBAL=$PWD/c git push origin", refused},
		{"GIT_CONFIG_SYSTEM", gitHome + " > c; GIT_CONFIG_SYSTEM=$PWD/c git push origin", refused},
		{
			"GIT_CONFIG_COUNT",
			"GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=remote.origin.push GIT_CONFIG_VALUE_0=" + rewriting + " git push origin",
			refused,
		},
		{"GIT_CONFIG_PARAMETERS", "GIT_CONFIG_PARAMETERS=\"'remote.origin.push'='" + rewriting + "'\" git push origin", refused},
		{
			"GIT_CONFIG_PARAMETERS as older ones write it",
			"GIT_CONFIG_PARAMETERS=\"'remote.origin.push=" + rewriting + "'\" git push origin",
			refused,
		},
		{
			"GIT_EXEC_PATH",
			"mkdir e; printf '#!/bin/sh\\nexec git send-pack --force ./r.git main\\n' > e/git-zz; chmod +x e/git-zz; GIT_EXEC_PATH=$PWD/e git zz",
			refused,
		},
		{
			"another directory of programs",
			"mkdir e; printf '#!/bin/sh\\nexec git send-pack --force ./r.git main\\n' > e/git-zz; chmod +x e/git-zz; git --exec-path=$PWD/e zz; PATH=$PWD/e:$PATH git zz",
			refused,
		},
		{
			"GIT_EXTERNAL_DIFF",
			"echo a > a; git add a; GIT_EXTERNAL_DIFF='git push -f origin main #' git diff --cached; GIT_PAGER='git push -f origin main' git -p log",
			refused,
		},
		{"GIT_WORK_TREE", "mkdir w; GIT_WORK_TREE=$PWD/w git push origin main", harmless},
		{"GIT_OBJECT_DIRECTORY", "cp -r .git/objects o; GIT_OBJECT_DIRECTORY=$PWD/o git push origin main", harmless},
		{"GIT_NAMESPACE", "GIT_NAMESPACE=x git push origin main; git --namespace=x push origin main", harmless},
		{"GIT_SSH_COMMAND", "GIT_SSH_COMMAND='sh -c \"git-receive-pack r.git\"' git push ssh://host/r.git main", harmless},
		{"GIT_ALLOW_PROTOCOL", "GIT_ALLOW_PROTOCOL=ext git push 'ext::git-receive-pack r.git' main", harmless},
		{"a word that git corrects", "git -c help.autocorrect=immediate psuh -f origin main", refused},
		{"a remote that mirrors", "git remote add --mirror=push m ./r.git; git push m", refused},
		{"push.default", "git config push.default matching; git push origin", harmless},
		{
			"a program on the other side",
			"git push --receive-pack='git -C r.git update-ref -d refs/heads/main; git-receive-pack' origin HEAD:refs/heads/new",
			refused,
		},
		{
			"the plumbing",
			"git send-pack --force ./r.git main; /usr/lib/git-core/git-send-pack --force ./r.git main; git http-push -f http://127.0.0.1/r.git main",
			refused,
		},
		{"the program below", "/usr/lib/git-core/git-push -f origin main; /usr/lib/git-core/git push -f origin main", refused},
		{"a copy of git", "cp /usr/bin/git g; ./g push -f origin main; cp /usr/bin/git git-push; ./git-push -f origin main", refused},

		{"git's own file", gitHome + " >> .git/config; git push origin", refused},
		{"a file beside it", gitHome + " > .git/config.worktree; git config extensions.worktreeConfig true; git push origin", refused},
		{
			"a remote as git once had it",
			"mkdir .git/remotes; printf 'URL: %s\\nPush: " + rewriting + "\\n' \"$PWD/r.git\" > .git/remotes/old; git push old",
			refused,
		},
		{"a common directory", "cp -r .git evil; " + gitHome + " >> evil/config; echo ../evil > .git/commondir; git push origin", refused},
		{
			"another repository in its place",
			"cp -r .git evil; " + gitHome + " >> evil/config; mv .git old; ln -s evil .git; git push origin",
			refused,
		},

		{"a repository outside the workspace", "cp -r .git /tmp/g; " + gitHome + " >> /tmp/g/config; GIT_DIR=/tmp/g git push origin", open},
		{"the same as an option", "cp -r .git /tmp/g; " + gitHome + " >> /tmp/g/config; git --git-dir=/tmp/g push origin", open},
		{"the same as a directory", "cp -r .git /tmp/g; " + gitHome + " >> /tmp/g/config; cd /tmp/g && git push origin", open},
		{
			"a common directory outside the workspace",
			"cp -r .git /tmp/g; " + gitHome + " >> /tmp/g/config; GIT_COMMON_DIR=/tmp/g git push origin",
			open,
		},
		{"a program that speaks the protocol", speaksGit, open},
	}
	observe, err := filepath.Abs(filepath.Join(packs, "observe.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	unguarded := filepath.Join(t.TempDir(), "unguarded.yaml")
	if err := os.WriteFile(unguarded, []byte("version: 1\nname: unguarded\nextends: ["+observe+"]\ngit_guard: false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			works, shown := pushes(t, unguarded, tt.script)
			if works != (tt.want != harmless) {
				t.Errorf("without rules it works: %v, it is said to be %s\n%s", works, tt.want, shown)
			}
			if works, shown := pushes(t, filepath.Join(packs, "agent-sandbox.yaml"), tt.script); works != (tt.want == open) {
				t.Errorf("under agent-sandbox it works: %v, it is said to be %s\n%s", works, tt.want, shown)
			}
		})
	}
}

// TestAnOrdinaryPushGoesThrough: what is not rewritten is pushed as ever.
func TestAnOrdinaryPushGoesThrough(t *testing.T) {
	needSandbox(t)
	testenv.Need(t, testenv.Program("git"))
	const next = "git reset -q --hard origin/main && git commit -q --allow-empty -m next && "
	for _, script := range []string{
		"git push -q origin main", "git push -q", "git push -qu origin main", "git push -q origin HEAD:main",
		"git push -q origin main:main --follow-tags",
		"git -c core.quotePath=false push -q origin main", "git push -q ./r.git main", "GIT_SSH_COMMAND=false git push -q --no-verify origin main",
	} {
		if works, shown := pushes(t, filepath.Join(packs, "agent-sandbox.yaml"), next+script); !works {
			t.Errorf("%s\n%s", script, shown)
		}
	}
}

// pushes runs a script under a pack in a repository whose branch main has left
// that of its remote r.git, and reports whether main moved there.
func pushes(t *testing.T, policy, script string) (moved bool, shown []byte) {
	t.Helper()
	p, err := loadPolicy(policy, policytest.Vars())
	if err != nil {
		t.Fatal(err)
	}
	var before string
	s, err := openScratch(t.Context(), p, func(s *scratch) error {
		onHost(t, s.dir, `git init -q -b main . && git config user.name day && git config user.email day@example.com &&
			git commit -q --allow-empty -m first && git commit -q --allow-empty -m second && git init -q --bare -b other r.git && git push -q ./r.git main &&
			git remote add origin `+policytest.Vars()["WORKSPACE"]+`/r.git && git update-ref refs/remotes/origin/main main &&
			git config branch.main.remote origin && git config branch.main.merge refs/heads/main &&
			echo r.git >> .git/info/exclude && git commit -q --amend --allow-empty -m other && chmod -R a+rwX .`)
		before = tip(t, s.dir)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if before == "" {
		t.Fatal("the remote has no main")
	}
	o, err := s.run(t.Context(), "bash", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return tip(t, s.dir) != before, o.output
}

// tip is the commit of main in the remote, empty when there is none.
func tip(t *testing.T, dir string) string {
	t.Helper()
	return onHost(t, dir, "git -c safe.directory='*' --git-dir=r.git for-each-ref --format='%(objectname)' refs/heads/main")
}

// onHost runs a script outside the session.
func onHost(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// speaksGit moves main by the protocol that git push speaks, without git push.
const speaksGit = `python3 - <<'END'
import hashlib, subprocess
def line(p):
    n = int(p.stdout.read(4), 16)
    return p.stdout.read(n - 4) if n else None
p = subprocess.Popen(["git-receive-pack", "r.git"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
old = ""
while (l := line(p)) is not None:
    if b"refs/heads/main" in l:
        old = l[:40].decode()
new = subprocess.check_output(["git", "rev-parse", "HEAD~1"], text=True).strip()
command = ("%s %s refs/heads/main\0report-status" % (old, new)).encode()
pack = b"PACK\0\0\0\2\0\0\0\0"
p.stdin.write(b"%04x%s0000" % (len(command) + 4, command) + pack + hashlib.sha1(pack).digest())
p.stdin.close()
print(p.stdout.read())
END`
