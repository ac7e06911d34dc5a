package projectcmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/project"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/policy/syntax"
)

// decision is a request of the tests of a policy, and what the policy decides.
type decision struct {
	What     string `json:"what"`
	Decision string `json:"decision"`
	Rule     string `json:"rule"`
}

// writer writes the policy of a project and its tests.
type writer struct {
	dir, pack string
	tree      *os.Root
	made      *made
}

// sample is a request of the tests.
type sample struct {
	what    string
	request string // as the tests have it
	want    string // of a rule that init writes; empty: what the pack decides
}

// head begins both files; %s is the name of the schema.
const head = "# yaml-language-server: $schema=/usr/share/agentsh/schemas/%s.schema.json\n"

// write returns the policy and its tests. The policy loads and the tests pass, or it is an
// error.
func (w *writer) write() ([2][]byte, error) {
	var none [2][]byte
	pack, err := w.load(w.policy(nil))
	if err != nil {
		return none, err
	}
	for _, s := range w.stacks() {
		found, passed := s.Registries(w.tree)
		found = append(found, w.settings(s)...)
		for _, r := range found {
			known := slices.ContainsFunc(w.made.Registries, func(x project.Registry) bool { return x.Host == r.Host && x.Port == r.Port })
			if !known && !permits(pack, r) {
				w.made.Registries = append(w.made.Registries, r)
			}
		}
		for _, text := range passed {
			w.made.Notes = append(w.made.Notes,
				"no rule for "+text+", which is no address of a registry by name: add one to network_rules if you want it")
		}
	}
	if !strings.HasPrefix(w.pack, filepath.Dir(layout.Config)+"/") {
		w.made.Notes = append(w.made.Notes, w.pack+" is a file of this machine alone: others who use the policy change extends")
	}
	text := w.policy(w.made.Registries)
	if _, err := w.load(text); err != nil {
		return none, err
	}
	tests, err := w.tests(text)
	return [2][]byte{text, tests}, err
}

// settings notes what the user has set for the tools of a stack, and returns the registries
// in it.
func (w *writer) settings(s *project.Stack) []project.Registry {
	sets, found, passed := s.Settings(w.tree)
	w.made.Settings = append(w.made.Settings, sets...)
	for _, set := range passed {
		w.made.Notes = append(w.made.Notes, set.Name+" by "+set.From+
			" has a password, or an address that makes no rule: pass it with 'agentsh exec -e "+set.Name+"', and allow its host in network_rules")
	}
	return found
}

// stacks are those of the project, in the order of [project.Stacks].
func (w *writer) stacks() (out []*project.Stack) {
	for i := range project.Stacks {
		if _, ok := w.made.Stacks[project.Stacks[i].Name]; ok {
			out = append(out, &project.Stacks[i])
		}
	}
	return out
}

// file is the name of the policy.
func (w *writer) file() string { return project.PolicyFile(w.dir) }

// read reads a file of the policy, and the policy as it will be written.
func (w *writer) read(own []byte) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if name == w.file() {
			return own, nil
		}
		return project.Read(name)
	}
}

func (w *writer) load(own []byte) (*policy.Policy, error) {
	p, err := syntax.Load(policy.Source{Name: w.file(), Data: own}, syntax.Options{Vars: policytest.Vars(), ReadFile: w.read(own)})
	if err != nil {
		return nil, failure.New(failure.Ours, err, "extend another policy with --pack")
	}
	return p, nil
}

// permits reports whether a policy lets a registry be reached without a question. The
// machine's loopback is reached only where a rule names it.
func permits(p *policy.Policy, r project.Registry) bool {
	port, err := strconv.Atoi(r.Port)
	d, _ := p.Evaluate(&policy.NetworkRequest{Domain: r.Host, Port: port, Protocol: "tcp"})
	return err == nil && r.Host != "localhost" && d.Permits()
}

// policy is the text of the policy.
func (w *writer) policy(registries []project.Registry) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, head, "policy")
	b.WriteString(`# What commands may do in this project. Of each group the first rule that matches decides:
# those here come first, then those of the pack.
#   agentsh policy explain -- COMMAND    what a command may do, and why
#   agentsh policy test .agentsh         run the tests beside this file
#   agentsh trust                        use it as it is now; again after each change
`)
	var names []string
	for _, s := range w.stacks() {
		names = append(names, s.Name)
	}
	fmt.Fprintf(&b, "version: 1\nname: %s\ndescription: %s\nextends: [%s]\n", policyName(w.dir),
		quote(strings.TrimSpace(strings.Join(names, ", ")+" project")), quote(w.pack))
	if rules := w.publishing(); rules != "" {
		b.WriteString("\ncommand_rules:\n" + rules)
	}
	b.WriteString(`
file_rules:
  - name: own-policy
    paths: ['${PROJECT_ROOT}/.agentsh/**']
    operations: [write, create, delete, rename, chmod, chown, link, symlink, mkdir, rmdir, mknod, xattr, utime]
    decision: deny
    message: the policy of this project is changed by a person
`)
	if len(registries) > 0 {
		b.WriteString("\nnetwork_rules:\n")
	}
	for i, r := range registries {
		fmt.Fprintf(&b, "  - name: registry-%d # %s names it; a private address needs cidrs as well\n    domains: [%s]\n    ports: [%s]\n"+
			"    decision: allow\n", i+1, r.File, quote(r.Host), r.Port)
	}
	if len(w.made.Settings) > 0 {
		b.WriteString("\n# as they were for the person who wrote this policy\nenv_inject:\n")
	}
	for _, set := range w.made.Settings {
		fmt.Fprintf(&b, "  %s: {value: %s, enforce: start}\n", set.Name, quote(set.Value))
	}
	return []byte(b.String())
}

// publishing are rules against publishing what the project makes.
func (w *writer) publishing() string {
	var b strings.Builder
	for _, s := range w.stacks() {
		if len(s.Publish) == 0 {
			continue
		}
		fmt.Fprintf(&b, "  - name: no-publishing-%s\n    commands: [%s]\n    args: [%s]\n    decision: deny\n"+
			"    message: a person publishes, and decides who may\n", s.Name, strings.Join(s.Publish, ", "), quote(s.Words))
	}
	return b.String()
}

// samples are the requests of the tests.
func (w *writer) samples() []sample {
	command := func(want string, argv ...string) sample {
		return sample{strings.Join(argv, " "), "command: [" + strings.Join(quoted(argv), ", ") + "]", want}
	}
	connect := func(want string, host, port string) sample {
		return sample{"connect to " + host + ":" + port, "network: {domain: " + quote(host) + ", port: " + port + "}", want}
	}
	file := func(want string, op, name string) sample {
		return sample{op + " " + name, "file: {path: " + quote("${PROJECT_ROOT}/"+name) + ", operation: " + op + "}", want}
	}
	deny, allow := policy.Deny.String(), policy.Allow.String()
	var out []sample
	for _, s := range w.stacks() {
		for _, argv := range s.Try {
			out = append(out, command("", argv...))
		}
		if len(s.Publish) > 0 {
			word, _, _ := strings.Cut(s.Words, "|")
			out = append(out, command(deny, s.Publish[0], word))
		}
		for _, host := range s.Hosts {
			out = append(out, connect("", host, "443"))
		}
	}
	for _, r := range w.made.Registries {
		out = append(out, connect(allow, r.Host, r.Port))
	}
	return append(out, command("", "git", "commit", "-m", "text"), command("", "git", "push", "--force"), command("", "sudo", "ls"),
		connect("", "example.com", "443"), file("", "write", "src/a"), file("", "read", ".env"), file("", "write", ".github/workflows/a.yml"),
		file(deny, "write", layout.ProjectPolicy), file(deny, "rename", filepath.Dir(layout.ProjectPolicy)))
}

// tests are the tests of the policy: what it decides about each sample.
func (w *writer) tests(own []byte) ([]byte, error) {
	var samples []sample
	for _, s := range w.samples() {
		if !slices.ContainsFunc(samples, func(x sample) bool { return x.what == s.what }) {
			samples = append(samples, s)
		}
	}
	draft, err := w.run(own, suite(samples, nil))
	if err != nil {
		return nil, err
	}
	for i, r := range draft.Results {
		d := decision{samples[i].what, r.Effect.String(), "default"}
		if r.Rule != nil {
			d.Rule = r.Rule.Name
		}
		if want := samples[i].want; want != "" && r.Effect.String() != want {
			return nil, failure.New(failure.Ours, fmt.Errorf("%s: rule %s of %s decides %s", d.What, d.Rule, w.pack, d.Decision),
				"extend another policy with --pack")
		}
		w.made.Decisions = append(w.made.Decisions, d)
	}
	text := suite(samples, w.made.Decisions)
	report, err := w.run(own, text)
	if err == nil && report.Failed() > 0 {
		err = errors.New("the tests of the policy fail")
	}
	return text, err
}

// run runs tests under the policy.
func (w *writer) run(own, tests []byte) (policytest.Report, error) {
	s, err := policytest.ParseSuite(strings.TrimSuffix(w.file(), ".yaml")+"_test.yaml", tests)
	if err != nil {
		return policytest.Report{}, err
	}
	p, err := policytest.LoadPolicy(s, w.read(own))
	if err != nil {
		return policytest.Report{}, err
	}
	return policytest.Run(s, p), nil
}

// suite is the text of tests. Without decisions they expect anything.
func suite(samples []sample, decisions []decision) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, head, "tests")
	b.WriteString("# What the policy beside this file decides. Run them with    agentsh policy test .agentsh\npolicy: policy.yaml\ntests:\n")
	for i, s := range samples {
		expect := "allow"
		if decisions != nil {
			expect = "{decision: " + decisions[i].Decision + ", rule: " + decisions[i].Rule + "}"
		}
		fmt.Fprintf(&b, "  - {name: %s, %s, expect: %s}\n", quote(s.what), s.request, expect)
	}
	return []byte(b.String())
}

// policyName makes a name of a policy from the name of a directory.
func policyName(dir string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(filepath.Base(dir)))
	if name = strings.Trim(name[:min(len(name), 40)], "-"); name == "" || name[0] <= '9' {
		name = strings.TrimSuffix("project-"+name, "-")
	}
	return name
}

// quote is a text of YAML between single quotes.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func quoted(list []string) (out []string) {
	for _, s := range list {
		out = append(out, quote(s))
	}
	return out
}
