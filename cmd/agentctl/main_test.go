package main

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"agentsh/internal/openshelldouble"
	"agentsh/internal/testenv"
)

func TestMain(m *testing.M) {
	openshelldouble.Main()
	testenv.DefaultSignals()
	testscript.Main(cleaning{m}, map[string]func(){"agentctl": main, "agentsh": hostileSupervisor})
}

// cleaning removes the programs that the tests built.
type cleaning struct{ m *testing.M }

func (c cleaning) Run() int {
	code := c.m.Run()
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	return code
}

var update = flag.Bool("update", false, "rewrite the expected outputs of the scripts")

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, UpdateScripts: *update})
}
