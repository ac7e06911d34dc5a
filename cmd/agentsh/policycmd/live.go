package policycmd

import (
	"context"
	"fmt"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/policytest"
)

// liveResult is one command of a test file, really run.
type liveResult struct {
	file, name, at string
	problem        string // empty: as expected
}

// runLive runs the commands of suites in a scratch sandbox under p and compares
// what happens with what the cases expect. Left out are cases that describe a
// situation (a path, a caller, a chain) which running the command does not make,
// and programs that this machine does not have.
func runLive(ctx context.Context, p *policy.Policy, suites []*policytest.Suite) (out []liveResult, err error) {
	s, err := openScratch(ctx, p, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := s.Close(); err == nil {
			err = closed
		}
	}()
	for _, suite := range suites {
		for i := range suite.Cases {
			c := &suite.Cases[i]
			argv := liveCommand(c)
			if argv == nil {
				continue
			}
			o, err := s.run(ctx, argv...)
			if err != nil {
				return nil, err
			}
			if o.exit.Kind == wire.ExitSpawnFailed && o.exit.Code == 127 {
				continue
			}
			out = append(out, liveResult{suite.File, c.Name, c.Pos.String(), compareLive(c.Want, o)})
		}
	}
	return out, nil
}

// liveCommand is the command of a case that can be run as it stands.
func liveCommand(c *policytest.Case) []string {
	q, ok := c.Request.(*policy.CommandRequest)
	if !ok || q.Depth > 0 || q.Interactive || !c.Plain {
		return nil
	}
	return q.Argv
}

// compareLive says how an outcome differs from the expected one. Only a denial can
// be observed from outside; the result of an allowed command is not compared.
func compareLive(want policytest.Want, o outcome) string {
	permitted := want.Effect == policy.Allow || want.Effect == policy.Audit || want.Effect == policy.Redirect
	switch {
	case permitted && o.denied():
		return fmt.Sprintf("it was denied in a sandbox: %s", o.exit.Message)
	case !permitted && !o.denied():
		return fmt.Sprintf("it was not denied in a sandbox but %s with code %d", o.exit.Kind, o.exit.ExitCode())
	case want.Rule != "" && !permitted && o.exit.Rule != nil && o.exit.Rule.Name != want.Rule:
		return fmt.Sprintf("it was denied in a sandbox by rule %s, expected rule %s", o.exit.Rule.Name, want.Rule)
	}
	return ""
}
