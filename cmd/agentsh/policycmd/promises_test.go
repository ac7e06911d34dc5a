package policycmd

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsh/policy/policytest"
)

// promise is a sentence of a pack, with what shows that it is so: names of
// cases of the pack's own tests, or of Go tests of this directory. A sentence
// that promises nothing has a reason instead.
type promise struct {
	sentence string
	shown    []string
	none     string
}

// promises are the sentences at the head of every pack and its description.
var promises = map[string][]promise{
	"default": {
		{"What holds when nothing stricter is chosen.", nil, "says what the file is"},
		{"A command may work in the workspace, its home and the scratch directories and run the programs of the system.",
			[]string{
				"the workspace is written",
				"the home directory is written",
				"scratch files are written",
				"programs run",
				"TestPacksStartAndRunTypicalCommands",
			}, ""},
		{"It cannot change the system's programs or the environment that was delivered.",
			[]string{"programs are not replaced", "the delivered environment is not changed", "TestPacksStartAndRunTypicalCommands"}, ""},
		{"A repository takes git's ordinary work, and no hook or setting that runs a program when somebody else uses git there later.",
			[]string{
				"settings of ordinary work",
				"no hook",
				"nor a setting that runs a program",
				"nor a repository outside",
				"TestPacksStartAndRunTypicalCommands",
			}, ""},
		{"It takes no other rights.", []string{"sudo is denied", "unshare is denied by its path", "a renamed copy of nsenter is denied"}, ""},
		{"There is no network.", []string{"no host is reached", "TestPacksStartAndRunTypicalCommands"}, ""},
		{
			"Within a group the first rule that matches decides; what no rule names is denied.",
			[]string{"logs of the machine are not read", "TestExamplesOfTheReference"},
			"",
		},
		{"ordinary work in one directory of a machine", []string{"TestPacksStartAndRunTypicalCommands"}, ""},
	},
	"agent-sandbox": {
		{
			"An agent at work on a project: it reads, edits, builds, tests, commits and pushes as a developer does.",
			[]string{"TestPacksStartAndRunTypicalCommands", "TestAnOrdinaryPushGoesThrough"},
			"",
		},
		{"It does not change what CI, editors or other agents will run, or end processes by name: signals go to processes of the session, by number or as a job of the shell.",
			[]string{
				"workflows are not changed",
				"a directory of workflows is not linked",
				"tasks of an editor are not changed",
				"a directory of tasks is not linked",
				"settings of an agent are not changed",
				"pkill",
				"killall in busybox",
				"a child is ended",
				"a job with its own group",
				"everything behind dashes",
				"TestPoliciesProtectTheDirectoriesTheyNameFilesIn",
			}, ""},
		{
			"git refuses a push that rewrites or deletes in plain words.",
			[]string{"TestAPushThatRewritesIsRefused", "a forced push", "a section in capitals"},
			"",
		},
		{
			"That is a fence for mistakes: what holds shared history is the protection of branches on the server, so switch it on there.",
			nil,
			"says who holds it",
		},
		{
			"A program that speaks git's protocol by itself, and a repository that was made outside the workspace with settings of its own, are not seen by rules about words.",
			[]string{"TestAPushThatRewritesIsRefused"},
			"",
		},
		{"a coding agent on one project, with a developer's tools; protect branches on the server", []string{"TestPacksStartAndRunTypicalCommands"}, ""},
	},
	"agent-strict": {
		{
			"An agent that reads, edits and checks a project and nothing more.",
			[]string{"TestPacksStartAndRunTypicalCommands", "curl", "kill", "owners are not changed"},
			"",
		},
		{
			"Programs come from the system alone, by their paths; what was built or brought in does not run, though a listed interpreter may read it.",
			[]string{
				"a program of the project",
				"a program of the project under a listed name",
				"a program of the scratch directory under a listed name",
				"what was built does not run",
				"python",
			},
			"",
		},
		{
			"There is no network: git exchanges commits with repositories that the commands may read and write, and with no other.",
			[]string{"no host is reached", "other homes", "a push", "a clone", "nor a repository outside", "no settings as options"},
			"",
		},
		{
			"A command keeps few variables and ends after ten minutes.",
			[]string{"what is not listed does not", "git's ways to run programs do not", "TestPacksEndCommandsInTime"},
			"",
		},
		{"an agent on one project, with listed tools only", []string{"a program of the project", "no alias"}, ""},
	},
	"ci-strict": {
		{"A build or test job of code that nobody has read yet.", nil, "says what the file is for"},
		{
			"It may run anything it brings along, inside its own checkout.",
			[]string{"a built program", "the checkout is written", "other checkouts", "TestPacksStartAndRunTypicalCommands"},
			"",
		},
		{"It publishes nothing: registries are reached by GET and HEAD only, and other hosts not at all; the rules on words say so earlier.",
			[]string{
				"registries are read",
				"nothing is put to them",
				"nothing is posted to them",
				"nothing is deleted there",
				"nothing else is posted to npm",
				"other hosts are not",
				"hosts that take uploads are not reached",
				"npm publish",
				"cargo with a toolchain",
				"yarn",
				"dotnet",
				"npm behind npx",
				"mvn",
				"gradle",
				"twine",
				"uv",
				"bun",
				"git lfs push",
				"docker",
			}, ""},
		{
			"It gets no tokens of its runner and reads no secrets of its machine.",
			[]string{"a token does not", "other variables of the runner do not", "secrets"},
			"",
		},
		{"It schedules nothing for later and ends after half an hour.", []string{"a terminal multiplexer", "TestPacksEndCommandsInTime"}, ""},
		{"What it reads it can put into the names that it asks for: give it no secrets.", nil, "advice"},
		{"build and test untrusted code", []string{"TestPacksStartAndRunTypicalCommands"}, ""},
	},
	"dev-safe": {
		{
			"A person's own machine with an assistant at the keyboard: everything of daily work, and a question before the usual commands that destroy or publish.",
			[]string{
				"rm of a directory is asked",
				"find that deletes is asked",
				"a hard reset is asked",
				"a push is asked",
				"npm publish is asked",
				"a cluster is asked",
				"TestPacksStartAndRunTypicalCommands",
			},
			"",
		},
		{"A program that does the same by itself is not asked about.", []string{"what removes by itself is not asked about"}, ""},
		{"Where nobody can be asked the answer is no.", []string{"TestPacksStartAndRunTypicalCommands"}, ""},
		{
			"daily work, with a question before the usual commands that destroy or publish",
			[]string{"rm of a directory is asked", "npm publish is asked"},
			"",
		},
	},
	"observe": {
		{
			"Nothing is refused that a sandbox can show, but hooks and settings that git would run later, when somebody else uses it there, and the keys and logins of a home.",
			[]string{
				"a key of a home is not read",
				"a login of a program is not read",
				"every program runs and is logged",
				"the home directory is written",
				"hosts of this network too",
				"no hook",
				"nor a setting that runs a program",
				"TestPacksStartAndRunTypicalCommands",
			},
			"",
		},
		{"What is run, what is done in the workspace, what is reached and what is signalled is written down.",
			[]string{
				"every program runs and is logged",
				"the workspace is logged",
				"hosts are reached and logged",
				"signals of the session are logged",
			}, ""},
		{"What listens on the machine's localhost is reached, too.",
			[]string{"services of the machine too", "TestWorkWithARegistryOfTheMachineIsLearned"}, ""},
		{
			"It is the first step to a policy of one's own: run a day of work under it, then `agentsh policy learn` makes a policy of the audit log.",
			[]string{"TestALearnedPolicyDoesTheSameAgain"},
			"",
		},
		{
			"log what is run, done in the workspace and reached; refuse nothing that can be seen",
			[]string{"every program runs and is logged", "the workspace is logged", "hosts are reached and logged"},
			"",
		},
	},
	"plain": {
		{
			"For an environment without namespaces and FUSE, such as a container with default flags: files are trees as a whole.",
			[]string{"the workspace is written", "the files of agentsh are not written"},
			"",
		},
		{
			"The configuration of the packages chooses it there (key container).",
			[]string{"TestTheInstalledConfigurationChoosesAPolicyForContainers"},
			"",
		},
		{
			"It is default without git_guard and the rules on names in the workspace, so what an agent leaves in a repository runs when somebody else uses git there: look at the changes before, or take the commits out with git bundle.",
			nil,
			"a warning",
		},
		{"ordinary work where a session cannot mount", []string{"TestPacksStartAndRunTypicalCommands"}, ""},
	},
}

// TestEverySentenceOfAPackIsShown: a sentence that is added or changed needs a
// test, or the reason why it promises nothing.
func TestEverySentenceOfAPackIsShown(t *testing.T) {
	tests := goTests(t)
	files, err := filepath.Glob(packs + "/*_test.yaml")
	if err != nil || len(files) != len(promises) {
		t.Fatalf("%d packs have promises, files are %q, %v", len(promises), files, err)
	}
	for _, file := range files {
		pack := strings.TrimSuffix(filepath.Base(file), "_test.yaml")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		suite, err := policytest.ParseSuite(file, data)
		if err != nil {
			t.Fatal(err)
		}
		known := slices.Clone(tests)
		for _, c := range suite.Cases {
			known = append(known, c.Name)
		}
		said := sentences(t, filepath.Join(packs, pack+".yaml"))
		for _, p := range promises[pack] {
			i := slices.Index(said, p.sentence)
			if i < 0 {
				t.Errorf("%s.yaml does not say: %s", pack, p.sentence)
				continue
			}
			said = slices.Delete(said, i, i+1)
			if (len(p.shown) == 0) == (p.none == "") {
				t.Errorf("%s.yaml: %s\nhas neither a test nor a reason, or both", pack, p.sentence)
			}
			for _, name := range p.shown {
				if !slices.Contains(known, name) {
					t.Errorf("%s.yaml: %s\nthere is no test %q", pack, p.sentence, name)
				}
			}
		}
		for _, s := range said {
			t.Errorf("%s.yaml: no test is named for: %s", pack, s)
		}
	}
}

// sentences are those of the comment at the head of a pack, and its description.
func sentences(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), "\nversion:")
	_, description, there := strings.Cut(rest, "\ndescription: ")
	if !ok || !there {
		t.Fatalf("%s has no head or no description", file)
	}
	description, _, _ = strings.Cut(description, "\n")
	text := strings.Join(strings.Fields(regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(head, "")), " ")
	marked := regexp.MustCompile(`\. ([A-Z]|git )`).ReplaceAllString(text, ".\n$1")
	return strings.Split(marked+"\n"+description, "\n")
}

// goTests are the names of the tests of this package and of the program.
func goTests(t *testing.T) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"*_test.go", "../*_test.go"} {
		some, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, some...)
	}
	var out []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(data), -1) {
			out = append(out, m[1])
		}
	}
	return out
}

// TestPacksEndCommandsInTime: the packs that say how long a command may take.
func TestPacksEndCommandsInTime(t *testing.T) {
	for pack, want := range map[string]time.Duration{"agent-strict": 10 * time.Minute, "ci-strict": 30 * time.Minute} {
		p, err := loadPolicy(filepath.Join(packs, pack+".yaml"), policytest.Vars())
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Limits(nil).CommandTimeout; got != want {
			t.Errorf("%s: %s, want %s", pack, got, want)
		}
	}
}
