package remote

import (
	"errors"
	"testing"

	"agentsh/controller/sandbox"
)

func TestTheBestKnownReasonIsTold(t *testing.T) {
	cut, no := errors.New("unexpected EOF"), errors.New("no such sandbox")
	memory, removed, node := &sandbox.End{Kind: sandbox.EndMemory}, &sandbox.End{Kind: sandbox.EndRemoved}, &sandbox.End{Kind: sandbox.EndNode}
	for _, tt := range []struct{ ended, again, want error }{
		{nil, no, no}, {cut, no, cut}, {cut, node, node}, {memory, removed, memory}, {node, removed, removed}, {node, no, node},
	} {
		if got := reason(tt.ended, tt.again); got != tt.want { //nolint:errorlint // the very error
			t.Errorf("%v, %v: %v, want %v", tt.ended, tt.again, got, tt.want)
		}
	}
}
