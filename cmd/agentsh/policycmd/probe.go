package policycmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/policy/syntax"
	evasions "agentsh/test/evasions/policy"
)

// evasion is one script.
type evasion struct {
	name   string
	script string
}

func readEvasions(kind string) ([]evasion, error) {
	entries, err := evasions.Scripts.ReadDir(kind)
	if err != nil {
		return nil, err
	}
	var out []evasion
	for _, e := range entries {
		data, err := evasions.Scripts.ReadFile(kind + "/" + e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, evasion{strings.TrimSuffix(e.Name(), ".sh"), string(data)})
	}
	return out, nil
}

// verdict is the outcome of one evasion.
type verdict string

const (
	verdictBlocked verdict = "blocked"
	verdictThrough verdict = "GETS THROUGH"
	verdictUnknown verdict = "unknown"
)

// attempt is one evasion of one target.
type attempt struct {
	kind    string // command, file, host
	target  string
	evasion string
	verdict verdict
	detail  string
}

func newProbeCommand() *cobra.Command {
	var at variables
	var verbose bool
	cmd := &cobra.Command{
		Use:     "probe FILE",
		Example: "  agentsh policy probe --verbose strict.yaml",
		Short:   "Try known evasions of everything a policy denies, in a scratch sandbox",
		Long: "Try known evasions of every command, file and host that a policy denies, in a scratch\n" +
			"sandbox, and report which get through. The exit code is 1 when one does. Commands are\n" +
			"those denied whatever their arguments, and present on this machine.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return probe(cmd.Context(), cmd.OutOrStdout(), args[0], &at, verbose)
		},
	}
	at.flags(cmd)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "also print blocked attempts")
	return cmd
}

func probe(ctx context.Context, out io.Writer, file string, at *variables, verbose bool) error {
	at.inSandbox()
	p, err := at.load(file)
	if err != nil {
		return err
	}
	pr := &prober{policy: p}
	var attempts []attempt
	for _, part := range []func(context.Context) ([]attempt, error){pr.commands, pr.files, pr.hosts} {
		found, err := part(ctx)
		if err != nil {
			return failure.New(failure.Ours, err, "")
		}
		attempts = append(attempts, found...)
	}
	return printAttempts(out, attempts, verbose)
}

func printAttempts(out io.Writer, attempts []attempt, verbose bool) error {
	counts := map[verdict]int{}
	for _, a := range attempts {
		counts[a.verdict]++
		if a.verdict == verdictBlocked && !verbose {
			continue
		}
		fmt.Fprintf(out, "%s: %s %s by %s", a.verdict, a.kind, a.target, a.evasion)
		if a.detail != "" {
			fmt.Fprintf(out, ": %s", a.detail)
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "%d tried, %d blocked, %d get through, %d unknown\n",
		len(attempts), counts[verdictBlocked], counts[verdictThrough], counts[verdictUnknown])
	if counts[verdictThrough] > 0 {
		return failure.New(failure.Found, nil, "")
	}
	return nil
}

// prober runs evasions against one policy.
type prober struct {
	policy *policy.Policy
}

// trial is one script to run, with the variables it is given.
type trial struct {
	attempt attempt
	script  string
	vars    map[string]string
}

// work is the workspace inside the sandbox.
func (pr *prober) work() string { return pr.policy.Vars()["WORKSPACE"] }

// runAll runs trials side by side, each in a directory of its own, and lets
// assess decide the verdict of each.
func (pr *prober) runAll(ctx context.Context, s *scratch, trials []trial, assess func(*trial, outcome)) error {
	if err := pr.control(ctx, s); err != nil {
		return err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	next := make(chan *trial)
	for range runtime.NumCPU() {
		wg.Go(func() {
			for t := range next {
				o, err := pr.script(ctx, s, t)
				mu.Lock()
				if err == nil {
					assess(t, o)
				} else if first == nil {
					first = err
				}
				mu.Unlock()
			}
		})
	}
	for i := range trials {
		if ctx.Err() != nil {
			break
		}
		next <- &trials[i]
	}
	close(next)
	wg.Wait()
	if first != nil {
		return first
	}
	return ctx.Err()
}

// control makes sure that scripts run in the sandbox at all: where they do not,
// everything would look blocked.
func (pr *prober) control(ctx context.Context, s *scratch) error {
	t := trial{script: "echo \"$M\" > f && cat f", vars: map[string]string{"M": "control " + rand.Text()}}
	o, err := pr.script(ctx, s, &t)
	if err != nil {
		return err
	}
	if !strings.Contains(string(o.output), t.vars["M"]) {
		return fmt.Errorf("the policy lets no script try anything: sh, mktemp and cat must run and write in the workspace, got %q", firstBytes(o))
	}
	return nil
}

func firstBytes(o outcome) string {
	if o.denied() {
		return o.exit.Message
	}
	return string(o.output[:min(len(o.output), 200)])
}

// script runs one trial. The variables are set in the script, since the policy
// may drop them from the environment.
func (pr *prober) script(ctx context.Context, s *scratch, t *trial) (outcome, error) {
	var b strings.Builder
	b.WriteString("d=$(mktemp -d \"" + pr.work() + "/trial.XXXXXX\") && cd \"$d\" || exit\nW=$d; export W\n")
	for _, name := range slices.Sorted(maps.Keys(t.vars)) {
		b.WriteString(name + "='" + strings.ReplaceAll(t.vars[name], "'", `'\''`) + "'; export " + name + "\n")
	}
	b.WriteString(t.script)
	return s.run(ctx, "/bin/sh", "-c", b.String())
}

// decide sets the verdict of a script that prints mark when it gets through.
func (t *trial) decide(o outcome, mark string) {
	switch {
	case o.denied():
		t.attempt.verdict, t.attempt.detail = verdictUnknown, "the policy denies the shell that would try"
	case strings.Contains(string(o.output), mark):
		t.attempt.verdict = verdictThrough
	case strings.Contains(string(o.output), "CANNOT TRY"):
		t.attempt.verdict, t.attempt.detail = verdictUnknown, "what it needs cannot be run in the sandbox"
	default:
		t.attempt.verdict = verdictBlocked
	}
}

func attemptsOf(trials []trial) []attempt {
	var out []attempt
	for _, t := range trials {
		out = append(out, t.attempt)
	}
	return out
}

// commands tries to run each program that is denied and present here.
func (pr *prober) commands(ctx context.Context) ([]attempt, error) {
	list, err := readEvasions("command")
	if err != nil {
		return nil, err
	}
	targets, err := pr.deniedPrograms()
	if err != nil || len(targets) == 0 {
		return nil, err
	}
	says, err := pr.fingerprints(ctx, targets)
	if err != nil {
		return nil, err
	}
	var trials []trial
	var out []attempt
	for _, target := range targets {
		f := says[target]
		if d, _ := pr.policy.Evaluate(policytest.Command([]string{target, f.argument})); f.text != "" && d.Effect != policy.Deny {
			f.text = ""
		}
		if f.text == "" {
			out = append(
				out,
				attempt{"command", target, "any way", verdictUnknown, "it prints nothing that identifies it, or is denied for its arguments only"},
			)
			continue
		}
		for _, e := range list {
			trials = append(trials, trial{
				attempt: attempt{kind: "command", target: target, evasion: e.name}, script: e.script,
				vars: map[string]string{"T": target, "A": f.argument, "M": f.text},
			})
		}
	}
	s, err := openScratch(ctx, pr.policy, nil)
	if err != nil {
		return nil, err
	}
	err = pr.runAll(ctx, s, trials, func(t *trial, o outcome) { t.decide(o, t.vars["M"]) })
	if closed := s.Close(); err == nil {
		err = closed
	}
	return append(attemptsOf(trials), out...), err
}

// deniedPrograms are the files of programs that no arguments make allowed.
func (pr *prober) deniedPrograms() ([]string, error) {
	names, err := policytest.DeniedCommands(pr.policy)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, name := range names {
		for _, f := range programFiles(name) {
			c := policytest.Command([]string{f})
			if d, _ := pr.policy.Evaluate(c); d.Effect == policy.Deny {
				seen[f] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// programFiles are the files on this machine that a name or pattern of a
// command rule stands for.
func programFiles(name string) []string {
	if strings.Contains(name, "/") {
		files, err := filepath.Glob(name)
		if err != nil {
			return nil // a pattern that names no file here
		}
		return files
	}
	var out []string
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"} {
		files, err := filepath.Glob(filepath.Join(dir, name))
		if err != nil {
			return nil
		}
		for _, f := range files {
			info, err := os.Lstat(f)
			if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
				continue
			}
			if resolved, err := filepath.EvalSymlinks(f); err == nil {
				out = append(out, resolved)
			}
		}
	}
	return out
}

// fingerprint is an argument and the text a program answers it with.
type fingerprint struct{ argument, text string }

// watching is a policy that lets programs run, to see what they print.
const watching = `version: 1
name: watching
command_rules: [{name: all, commands: ["*"], decision: allow}]
file_rules:
  - {name: own, paths: ["${WORKSPACE}/**", "${HOME}/**", "/tmp/**"], operations: ["*"], decision: allow}
  - {name: system, paths: ["/usr/**", "/bin/**", "/sbin/**", "/lib/**", "/lib32/**", "/lib64/**", "/opt/**"], operations: [read, list, stat, execute], decision: allow}
  - {name: settings, paths: ["/etc/ld.so.cache", "/etc/alternatives/**"], operations: [read, list, stat], decision: allow}
`

// fingerprints runs each target, allowed, and returns a line that identifies it.
func (pr *prober) fingerprints(ctx context.Context, targets []string) (map[string]fingerprint, error) {
	p, err := syntax.Load(policy.Source{Name: "watching", Data: []byte(watching)}, syntax.Options{Vars: pr.policy.Vars()})
	if err != nil {
		return nil, err
	}
	s, err := openScratch(ctx, p, nil)
	if err != nil {
		return nil, err
	}
	out := map[string]fingerprint{}
	for _, target := range targets {
		for _, argument := range []string{"--version", "--help", "-V"} {
			o, runErr := s.run(ctx, target, argument)
			if err = runErr; err != nil {
				break
			}
			if text := distinctLine(o.output, target); text != "" {
				out[target] = fingerprint{argument, text}
				break
			}
		}
	}
	if closed := s.Close(); err == nil {
		err = closed
	}
	return out, err
}

// tellingLine is the first line that a shell's complaint about the program
// cannot hold.
func distinctLine(output []byte, target string) string {
	for l := range strings.Lines(string(output)) {
		l = strings.TrimSpace(l)
		if len(l) >= 6 && l != target && !strings.Contains(l, "not found") && !strings.Contains(l, "denied") &&
			!strings.Contains(l, "not permitted") {
			return l
		}
	}
	return ""
}

// inWork is the host file of a path in the workspace of s, empty for any other.
func (pr *prober) inWork(s *scratch, name string) string {
	rest, ok := strings.CutPrefix(name, pr.work()+"/")
	if !ok || rest == "" {
		return ""
	}
	return filepath.Join(s.dir, filepath.FromSlash(path.Clean("/"+rest)))
}
