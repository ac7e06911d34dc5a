package policytest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

const strictPack = "../../packaging/policies/agent-strict_test.yaml"

// pack loads a shipped policy with its tests.
func pack(t testing.TB, file string) *Suite {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSuite(file, data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// BenchmarkTestThousandCases reads and runs a suite of 1,000 cases against
// agent-strict, the policy included. It is to stay under a second.
func BenchmarkTestThousandCases(b *testing.B) {
	var text strings.Builder
	text.WriteString("policy: agent-strict.yaml\ntests:\n")
	for i := range 500 {
		fmt.Fprintf(&text, "  - {name: command %d, command: [git, log, x%d], expect: {decision: allow, rule: git}}\n", i, i)
		fmt.Fprintf(&text, "  - {name: file %d, file: {path: '${WORKSPACE}/x%d', operation: write}, expect: allow}\n", i, i)
	}
	for b.Loop() {
		s, err := ParseSuite(strictPack, []byte(text.String()))
		if err != nil {
			b.Fatal(err)
		}
		p, err := LoadPolicy(s, os.ReadFile)
		if err != nil {
			b.Fatal(err)
		}
		if r := Run(s, p); r.Failed() != 0 || len(r.Results) != 1000 {
			b.Fatalf("%d of %d failed", r.Failed(), len(r.Results))
		}
	}
	if each := b.Elapsed() / time.Duration(b.N); each > time.Second {
		b.Errorf("1,000 cases take %v, at most a second is wanted", each)
	}
}

// BenchmarkMutateStrict tries all mutants of agent-strict. It is to stay under
// ten seconds.
func BenchmarkMutateStrict(b *testing.B) {
	s := pack(b, strictPack)
	p, err := LoadPolicy(s, os.ReadFile)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		m, err := Mutate(p, []*Suite{s})
		if err != nil || len(m.Survivors) != 0 {
			b.Fatalf("%v, survivors %v", err, m.Survivors)
		}
	}
	if each := b.Elapsed() / time.Duration(b.N); each > 10*time.Second {
		b.Errorf("all mutants take %v, at most ten seconds are wanted", each)
	}
}
