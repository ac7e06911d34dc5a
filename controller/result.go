package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"agentsh/controller/agenthost"
	"agentsh/controller/extract"
	"agentsh/controller/harness"
	"agentsh/controller/prescript"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/scan"
	"agentsh/internal/wire"
)

// Statuses of a [Result].
const (
	StatusDone             = "done"
	StatusAgentFailed      = "agent_failed"
	StatusTimeout          = "timeout"
	StatusValidationFailed = "validation_failed"
	StatusPostScriptFailed = "post_script_failed"
	StatusBlocked          = "blocked" // by a scan
	StatusFailed           = "failed"
	StatusCancelled        = "cancelled"
	StatusSkipped          = "skipped" // pre_script asked for it
)

// Statuses are all statuses of a [Result].
func Statuses() []string {
	return []string{
		StatusDone, StatusAgentFailed, StatusTimeout, StatusValidationFailed, StatusPostScriptFailed, StatusBlocked, StatusFailed,
		StatusCancelled, StatusSkipped,
	}
}

// Result is the result of a run, written as result.json.
type Result struct {
	Version        int               `json:"version"` // 1
	RunID          string            `json:"run_id"`
	Status         string            `json:"status"`
	ExitCode       int               `json:"exit_code"`
	Error          *ResultError      `json:"error,omitempty"`
	PreScript      *PreScript        `json:"pre_script,omitempty"` // what it said; absent: nothing
	Harness        string            `json:"harness"`
	Agent          string            `json:"agent,omitempty"`
	Role           string            `json:"role,omitempty"`
	Slug           string            `json:"slug,omitempty"`
	About          string            `json:"description,omitempty"`
	Doc            string            `json:"doc,omitempty"`
	Runtime        string            `json:"runtime,omitempty"`
	Backend        string            `json:"backend"`
	AgentHost      *agenthost.About  `json:"agent_host,omitempty"` // how the agent's program ran on the host; absent: in the sandbox
	Image          *ResultImage      `json:"image,omitempty"`      // whose files the sandbox had; absent: those of the machine
	Policy         string            `json:"policy_digest,omitempty"`
	Engine         string            `json:"engine,omitempty"`     // of the sandbox; see doc/detect.md
	Degraded       []string          `json:"degraded,omitempty"`   // mechanisms that the sandbox ran without
	Advisory       string            `json:"advisory,omitempty"`   // rules that nothing enforced in the sandbox
	Guarantees     []Guarantee       `json:"guarantees,omitempty"` // groups of rules, and who held them in the sandbox
	Repo           string            `json:"repo"`
	Base           string            `json:"base_commit,omitempty"`
	Branch         string            `json:"branch,omitempty"`           // in the target repository; empty: no commit was made
	Branches       []string          `json:"further_branches,omitempty"` // of other branches of the agent
	Commits        []Commit          `json:"commits"`
	RefusedCommits []extract.Refused `json:"refused_commits,omitempty"` // without the commits that build on them
	Bundle         string            `json:"bundle,omitempty"`          // all commits of the agent, if some were refused
	Changed        []Changed         `json:"changed"`
	Skipped        []string          `json:"not_taken,omitempty"` // files that cannot leave the sandbox, each with the reason
	Delivered      bool              `json:"delivered"`           // the results are at Out, and the commits in the repository
	Partial        bool              `json:"partial"`             // delivered, but the agent was stopped or part of its work was not extracted
	Iterations     []IterationResult `json:"iterations"`
	Usage          *runtime.Usage    `json:"usage,omitempty"`    // of all iterations
	Renewals       []Renewal         `json:"renewals,omitempty"` // of credentials that programs of the operator print
	Commands       int               `json:"commands"`           // programs started
	Programs       []Program         `json:"programs"`
	Refusals       int               `json:"refusals"`
	Refused        []Refusal         `json:"refused"`
	AuditGaps      int               `json:"audit_gaps"`      // missing events
	Added          []string          `json:"added,omitempty"` // files added to the repository in the sandbox; git ignores them
	// EmptySubmodules are the submodules of the repository, whose directories are
	// empty in the sandbox.
	EmptySubmodules []string       `json:"empty_submodules,omitempty"`
	Hooks           Hooks          `json:"hooks"`
	Trace           string         `json:"trace_id,omitempty"` // id that the findings share, if the harness enables it
	Findings        []scan.Finding `json:"findings"`           // of the scans
	Review          *Review        `json:"review,omitempty"`   // requested because of critical findings
	Out             string         `json:"out"`
	Audit           string         `json:"audit,omitempty"`
	PlaceLog        *PlaceLog      `json:"place_log,omitempty"` // of the place of the sandbox; absent: it has none
	Telemetry       *Telemetry     `json:"telemetry,omitempty"` // what was exported with --otlp
	Trashed         int            `json:"trashed,omitempty"`   // files in the trash of soft_delete, copied to the results
	Record          string         `json:"record,omitempty"`
	Started         time.Time      `json:"started"`
	Ended           time.Time      `json:"ended"`
}

// ResultError is the reason why a run did not succeed.
type ResultError struct {
	Step     string           `json:"step"`
	Message  string           `json:"message"`
	Hint     string           `json:"hint,omitempty"`
	End      sandbox.EndKind  `json:"sandbox_end,omitempty"` // what ended the sandbox from outside
	Problems harness.Problems `json:"problems,omitempty"`
}

// PreScript is what pre_script said about the run. Values that the script wants hidden
// are covered.
type PreScript struct {
	Skipped bool              `json:"skipped"`
	Reason  string            `json:"reason,omitempty"`
	Values  map[string]string `json:"values,omitempty"` // all lines of its output

	said prescript.Output // as it was written, for the next steps of a workflow
}

// ResultImage is the image of a sandbox.
type ResultImage struct {
	Name   string `json:"name"`             // in the harness
	Path   string `json:"path,omitempty"`   // on this machine; absent: the engine of the backend has it
	Digest string `json:"digest,omitempty"` // of the archive, or of the manifest; absent for a directory
}

// Review requests that a person reviews a run with critical findings.
type Review struct {
	Label string `json:"label"` // for the change or ticket of the run; the reader of the result sets it
}

// Commit is one commit of the agent.
type Commit struct {
	ID      string `json:"id"`
	Subject string `json:"subject"`
}

// Changed is one path of the repository that differs from the base commit.
type Changed struct {
	Path   wire.Name `json:"path"`
	Status string    `json:"status"` // added, modified, deleted, type_changed
	// By says that a process outside the session changed the path too (both), or made it in
	// a directory that the agent made (host). Empty: the agent alone.
	By wire.ChangedBy `json:"by,omitempty"`
}

// IterationResult describes the end of the agent in one iteration.
type IterationResult struct {
	Number     int           `json:"number"`
	Exit       wire.Exit     `json:"exit"`
	Validation string        `json:"validation,omitempty"` // passed, failed, timeout
	Feedback   string        `json:"feedback,omitempty"`   // output of the validator
	Duration   time.Duration `json:"duration_ns"`

	Usage       *runtime.Usage `json:"usage,omitempty"`       // as the program reports it
	Tools       []Tool         `json:"tools,omitempty"`       // used, in order of their first call
	Errors      []string       `json:"errors,omitempty"`      // reported by the program, at most 20
	Transcripts string         `json:"transcripts,omitempty"` // directory of the program's own logs, below the results
}

// newResult is the result of a run that starts now.
func newResult(o Options) Result {
	return Result{
		Version: 1, Status: record.StatusRunning, Harness: o.Harness, Repo: o.Repo, Backend: o.Backend.Name(), Out: o.Out,
		Started: time.Now().UTC(),
		Commits: []Commit{}, Changed: []Changed{}, Iterations: []IterationResult{}, Programs: []Program{}, Refused: []Refusal{},
		Findings: []scan.Finding{},
	}
}

// end writes the end of the run into the result.
func (r *Result) end(failed error) {
	r.Ended = time.Now().UTC()
	r.Status, r.ExitCode = StatusDone, ExitDone
	if r.PreScript != nil && r.PreScript.Skipped {
		r.Status = StatusSkipped
	}
	if failed != nil {
		r.fail(failed)
	}
}

// statusOf maps exit codes of a failed run to statuses.
var statusOf = map[int]string{
	ExitAgentFailed: StatusAgentFailed, ExitScan: StatusBlocked, ExitTimeout: StatusTimeout,
	ExitValidationFailed: StatusValidationFailed, ExitPostScriptFailed: StatusPostScriptFailed,
}

// fail writes the reason of the failure into the result.
func (r *Result) fail(err error) {
	var f *Failure
	if !errors.As(err, &f) {
		f = &Failure{Step: "run", Code: ExitSandbox, Err: err}
	}
	r.ExitCode = f.Code
	r.Error = &ResultError{Step: f.Step, Message: f.Err.Error(), Hint: f.Hint, Problems: f.Problems}
	if end := (*sandbox.End)(nil); errors.As(f.Err, &end) {
		r.Error.End = end.Kind
	}
	status, known := statusOf[f.Code]
	switch {
	case f.Code > exitSignalBase:
		r.Status, r.Partial = StatusCancelled, true
	case known:
		r.Status = status
	default:
		r.Status = StatusFailed
	}
}

// took adds the agent's work. skipped are files of transcripts that were not taken.
func (r *Result) took(w work, iterations []IterationResult, skipped []string) {
	r.Iterations = iterations
	for _, it := range iterations {
		r.addUsage(it.Usage)
	}
	w.into(r)
	r.Skipped = append(r.Skipped, skipped...)
}

// addUsage adds the usage of one iteration; nil if the program reported none.
func (r *Result) addUsage(u *runtime.Usage) {
	if u == nil {
		return
	}
	if r.Usage == nil {
		r.Usage = &runtime.Usage{}
	}
	r.Usage.Add(*u)
}

// ResultSchema is the JSON Schema of a [Result] as this version of the program
// writes it.
func ResultSchema() ([]byte, error) {
	text := &jsonschema.Schema{Type: "string"}
	s, err := jsonschema.For[Result](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[wire.Name]():      text,
		reflect.TypeFor[wire.ChangedBy](): {Type: "string", Enum: []any{string(wire.ByHost), string(wire.ByBoth)}},
		reflect.TypeFor[scan.Severity](): {
			Type: "string", Enum: []any{scan.Low.String(), scan.Medium.String(), scan.High.String(), scan.Critical.String()},
		},
		reflect.TypeFor[harness.Severity](): {
			Type: "string", Enum: []any{harness.Note.String(), harness.Warning.String(), harness.Error.String()},
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("schema of the result: %w", err)
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "result.json of agentctl run"
	describe("", s)
	s.Properties["version"].Const = jsonschema.Ptr[any](1)
	statuses := []any{}
	for _, status := range Statuses() {
		statuses = append(statuses, status)
	}
	s.Properties["status"].Enum = statuses
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("schema of the result: %w", err)
	}
	return append(data, '\n'), nil
}

// resultFields describes the fields of a [Result] by their JSON names. A field that
// means something else in one object has an entry with the name of that object.
var resultFields = map[string]string{
	"version":          "version of this format",
	"run_id":           "id of the run, as in agentctl runs",
	"status":           "how the run ended",
	"exit_code":        "exit code of agentctl run",
	"error":            "why the run did not succeed; absent: it did",
	"harness":          "file of the harness, as it was given",
	"agent":            "name of the agent",
	"role":             "role in the harness",
	"slug":             "slug in the harness",
	"description":      "description in the harness",
	"doc":              "doc in the harness",
	"runtime":          "agent program that ran",
	"backend":          "kind of the sandbox",
	"image":            "image whose files the sandbox had; absent: those of the machine",
	"policy_digest":    "digest of the policy",
	"engine":           "what stopped the calls of commands in the sandbox: listener, trace or none; absent: it did not open",
	"degraded":         "mechanisms that the sandbox ran without, as degraded of its configuration allows; absent: none",
	"advisory":         "rules that nothing enforced in the sandbox; absent: every rule was enforced",
	"guarantees":       "groups of rules, and who held them; absent: the sandbox did not start, or its agentsh does not say it",
	"group":            "group of rules",
	"held_by":          "agentsh, the name of the place, both with 'and', or 'not held'",
	"how":              "mechanism of agentsh; where it does not hold the group itself, what is left of it",
	"repo":             "directory of the repository",
	"base_commit":      "commit from which the agent started",
	"branch":           "branch in the repository with the agent's commits; absent: it made none",
	"further_branches": "branches in the repository with commits of the agent's other branches",
	"commits":          "commits of the agent on branch, newest first",
	"refused_commits":  "commits that were not taken; those that build on them were not taken either",
	"bundle":           "file with all commits of the agent, if some were refused",
	"changed":          "paths of the repository that differ from the base commit",
	"not_taken":        "files that could not leave the sandbox, each with the reason",
	"delivered":        "whether the results are at out and the commits in the repository",
	"partial":          "whether the agent was stopped, or part of its work or of its log is missing",
	"iterations":       "end of the agent in each iteration",
	"usage":            "use of the model, as the agent program reports it",
	"commands":         "number of programs that were started",
	"renewals":         "renewals of the credentials that commands of providers print",
	"programs":         "programs that were started",
	"refusals":         "number of refusals",
	"refused":          "kinds of refusals, at most 500",
	"audit_gaps":       "number of events that are missing in the audit log",
	"added":            "files that were added to the repository in the sandbox; git ignores them",
	"empty_submodules": "submodules, whose directories are empty in the sandbox",
	"hooks":            "hooks of the agent program",
	"trace_id":         "id that the findings of the run share",
	"findings":         "findings of the scans",
	"review":           "request that a person reviews the run, because of critical findings",
	"out":              "directory of the results",
	"audit":            "file of the audit log",
	"telemetry":        "what was exported with --otlp; absent: nothing was asked for",
	"to":               "collector to which it was sent",
	"sent":             "events and spans that the collector has taken",
	"not_sent":         "events and spans that were not sent, or that the collector refused",
	"waiting":          "events and spans that were not sent yet when the run ended; absent: none",
	"trashed":          "number of files in the trash of soft_delete, which are copied to the results",
	"record":           "directory of the run's record",
	"started":          "time of the start",
	"ended":            "time of the end",

	"step":    "step of the run that failed",
	"message": "what happened, in one sentence",
	"hint":    "what to do next",

	"sandbox_end": "what ended the sandbox from outside: memory, killed, removed, died, unreachable; absent: nothing did",

	"problems": "problems of the harness",
	"at":       "position",
	"severity": "how bad it is",

	"name":         "name",
	"path":         "path",
	"digest":       "digest of the archive, or of the manifest of an OCI layout; absent for a directory",
	"label":        "label for the change or ticket of the run",
	"id":           "name of the commit",
	"subject":      "first line of the commit's message",
	"commit":       "name of the commit",
	"reason":       "reason",
	"by":           "a process outside the session changed the path too (both), or alone (host); absent: only the agent",
	"number":       "number of the iteration, from 1",
	"exit":         "how the agent program ended",
	"validation":   "passed, failed or timeout; absent: nothing validates",
	"feedback":     "output of the validator",
	"duration_ns":  "duration in nanoseconds",
	"tools":        "tools that the agent used, in the order of their first calls",
	"errors":       "errors that the agent program reported, at most 20",
	"transcripts":  "directory of the agent program's own logs, below the results",
	"kind":         "exited, signaled, denied, deadline, oom, spawn_failed or lost",
	"code":         "exit status",
	"signal":       "number of the signal that ended it",
	"rule":         "rule that decided",
	"cause":        "why the session ended, if that ended the command",
	"rusage":       "resources that were used",
	"file":         "name of the file",
	"line":         "line, from 1; 0: none",
	"column":       "column, from 1; 0: none",
	"excerpt":      "text that was found; never a whole secret",
	"trace":        "id of the run that found it",
	"calls":        "number of calls",
	"failed":       "number of calls that failed",
	"count":        "how often",
	"type":         "exec, file, net, signal, hook or another type of event",
	"hook":         "name of the hook",
	"what":         "program, file, address or call that was refused",
	"active":       "hooks that ran",
	"unavailable":  "hooks that the runtime does not call",
	"rewritten":    "what hooks changed in answers of tools",
	"model":        "name of the model",
	"turns":        "number of answers of the model",
	"input_tokens": "tokens that the model read, without cached ones",

	"output_tokens":      "tokens that the model wrote",
	"cache_read_tokens":  "tokens that the model read from its cache",
	"cache_write_tokens": "tokens that were written to the cache",
	"cost_usd":           "cost in US dollars, as the program reports it; 0: not reported",

	"provider": "provider whose command prints the credentials",
	"renewed":  "number of renewals in the run",
	"expires":  "end of the last values; absent: they do not expire",

	"renewals.failed": "why the last renewal failed; absent: it did not",

	"user_us":       "processor time in user mode, in microseconds",
	"system_us":     "processor time in the kernel, in microseconds",
	"max_rss_bytes": "greatest resident memory of one process, in bytes",
	"layer":         "file of the harness or of a base that sets it",

	"pre_script":             "what pre_script said; absent: nothing",
	"pre_script.skipped":     "whether it skipped the run",
	"pre_script.reason":      "why it skipped the run",
	"pre_script.values":      "values by their names, one for each line of its output",
	"agent_host":             "how the agent's program ran on the host; absent: in the sandbox",
	"place_log":              "what the place of the sandbox said about it in a log of its own; absent: it has none",
	"place_log.by":           "who wrote it",
	"place_log.left_out":     "lines that do not fit into the file",
	"place_log.lines":        "lines in the file",
	"place_log.denials":      "how often the place denied something",
	"place_log.denied":       "the first denials, in the words of the place",
	"place_log.missing":      "why there is no log",
	"place_log.file":         "file in the directory of the record",
	"agent_host.program":     "file of the program",
	"agent_host.session":     "whether the program had a session of its own",
	"agent_host.why":         "why it had none",
	"agent_host.degraded":    "mechanisms that the session ran without",
	"agent_host.hosts":       "hosts that the session reached besides the tools",
	"agent_host.passed":      "names of variables of the host that the program had",
	"agent_host.refusals":    "number of refusals of the session",
	"agent_host.audit":       "audit log of the session, below the results",
	"telemetry.trace_id":     "id of the trace of the run",
	"telemetry.error":        "why some were not sent; absent: all were",
	"image.name":             "name in the harness",
	"image.path":             "path on this machine; absent: the engine of the backend has it",
	"tools.name":             "name of the tool",
	"programs.name":          "name of the program",
	"rule.name":              "name of the rule; default where none matched",
	"rule.file":              "file of the policy",
	"changed.path":           "path relative to the repository",
	"changed.status":         "added, modified, deleted or type_changed",
	"refused_commits.branch": "branch of the agent",
	"refused_commits.rule":   "kind of the problem",
	"refused_commits.reason": "why it was refused",
	"findings.file":          "file that was scanned",
	"findings.rule":          "stable name of the rule of the scan",
	"problems.rule":          "stable name of the check",
	"problems.at":            "file, line and column",
	"iterations.usage":       "use of the model in this iteration",
	"rewritten.reason":       "why it was changed",
}

// describe adds descriptions to the fields of an object with a name.
func describe(object string, s *jsonschema.Schema) {
	for _, below := range []*jsonschema.Schema{s.Items, s.AdditionalProperties} {
		if below != nil {
			describe(object, below)
		}
	}
	for name, field := range s.Properties {
		text, special := resultFields[object+"."+name]
		if !special {
			text = resultFields[name]
		}
		field.Description = text
		describe(name, field)
	}
}
