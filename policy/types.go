package policy

import (
	"errors"
	"time"

	"agentsh/policy/env"
)

// Limits are resource limits; a zero field is not set.
type Limits struct {
	MemoryBytes    int64
	CPUPercent     int
	Pids           int
	OpenFiles      int
	DiskWriteBytes int64
	CommandTimeout time.Duration
	SessionTimeout time.Duration
	IdleTimeout    time.Duration
}

// TreeVerdict says how a policy treats a whole directory tree.
type TreeVerdict struct {
	Uniform bool     // every path at or below the root gets Effect
	Effect  Effect   // of a path that no exception covers
	Except  []string // literal prefixes at or below the root where it may differ
}

// RedirectTo is the replacement of a redirected request.
type RedirectTo struct {
	Command     string
	Args        []string
	ArgsAppend  []string
	Environment map[string]string
	Path        string // file rules
}

type compiledMatch struct{}

// Policy is a compiled policy, safe for concurrent use.
type Policy struct{}

// Load parses and compiles a policy. The error is [Problems].
func Load(src Source, opts Options) (*Policy, error) { return nil, errors.New("policy: not loaded") }

// Evaluate decides one request.
func (p *Policy) Evaluate(r Request) (Decision, Diagnostic) { return Decision{}, Diagnostic{} }

// Name is the policy's name.
func (p *Policy) Name() string { return "" }

// Digest is the hex SHA-256 of the sources and variables.
func (p *Policy) Digest() string { return "" }

// Sources are the files the policy was loaded from, the main one first.
func (p *Policy) Sources() []Source { return nil }

// Vars are the variables it was loaded with.
func (p *Policy) Vars() map[string]string { return nil }

// EnvFilter merges env_policy with a matched command rule; r may be nil.
func (p *Policy) EnvFilter(r *Rule) env.Filter { return env.Filter{} }

// EnvInject is the policy's env_inject.
func (p *Policy) EnvInject() map[string]string { return nil }

// Limits merges resource_limits with a matched command rule; r may be nil.
func (p *Policy) Limits(r *Rule) Limits { return Limits{} }

// Roots are the literal prefixes of the file rules that let something through.
func (p *Policy) Roots() []string { return nil }

// Tree says how the policy treats the tree at root for the operations in ops.
func (p *Policy) Tree(root string, ops FileOp) TreeVerdict { return TreeVerdict{} }

// DeniedPrograms are the names and globs of the rules that deny by identity.
func (p *Policy) DeniedPrograms() []string { return nil }

// Rules are the rules of one group in evaluation order.
func (p *Policy) Rules(g Group) []*Rule { return nil }
