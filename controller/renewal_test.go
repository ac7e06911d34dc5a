package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"agentsh/controller/agenthost"
	"agentsh/controller/provider"
	"agentsh/internal/wire"
)

// renewed is a double of a sandbox or a session. It remembers the values that it gets.
type renewed []string

func (r *renewed) Renew(_ context.Context, values []wire.CredentialValue) error {
	for _, v := range values {
		*r = append(*r, v.Name+"="+v.Value)
	}
	return nil
}

func TestEachCredentialOfAHelperIsRenewedWhereItIs(t *testing.T) {
	n := 0
	run := func(context.Context, provider.Helper) (provider.Printed, error) {
		n++
		return provider.Printed{Values: map[string]string{"KEY": fmt.Sprintf("key-%d", n), "TOKEN": fmt.Sprintf("token-%d", n)}}, nil
	}
	one := provider.Helper{Provider: "p", Names: []string{"KEY", "TOKEN"}}
	h := newHelped([]provider.Helper{one}, plan{
		credentials: []wire.Credential{{Name: "p.TOKEN", Value: "random"}, {Name: "q.KEY", Value: "other"}},
		agent:       []agenthost.Credential{{Credential: wire.Credential{Name: "p.KEY", Value: "random"}, Variable: "KEY"}},
	}, run)
	ctx := t.Context()
	if err := h.fetch(ctx); err != nil {
		t.Fatal(err)
	}
	if c := h.ofAgent(); len(c) != 1 || c[0].Value != "key-1" {
		t.Errorf("of the agent's program: %+v", c)
	}
	if c := h.current(); c[0].Value != "token-1" || c[1].Value != "other" {
		t.Errorf("of the sandbox: %+v", c)
	}
	var inside, outside renewed
	if err := h.renewNow(ctx, one, &inside); err != nil { // before the program's session is there
		t.Fatal(err)
	}
	if err := h.follow(ctx, &outside); err != nil {
		t.Fatal(err)
	}
	if err := h.renewNow(ctx, one, &inside); err != nil {
		t.Fatal(err)
	}
	if err := h.follow(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if err := h.renewNow(ctx, one, &inside); err != nil { // after it
		t.Fatal(err)
	}
	if got := strings.Join(inside, " "); got != "p.TOKEN=token-2 p.TOKEN=token-3 p.TOKEN=token-4" {
		t.Errorf("the sandbox got %s", got)
	}
	if got := strings.Join(outside, " "); got != "p.KEY=key-2 p.KEY=key-3" {
		t.Errorf("the session of the agent's program got %s", got)
	}
}
