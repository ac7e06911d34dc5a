package main

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"agentsh/internal/layout"
	"agentsh/internal/openshelldouble"
	"agentsh/internal/testenv"
)

func TestMain(m *testing.M) {
	openshelldouble.Main()
	testscript.Main(cleaning{m}, map[string]func(){"agentctl": main, "agentsh": hostileSupervisor})
}

// cleaning removes the directory /sandbox that the tests made.
type cleaning struct{ m *testing.M }

func (c cleaning) Run() int {
	code := testenv.Run(c.m)
	if madeSandbox {
		_ = os.Remove(layout.Sandbox)
	}
	return code
}

var madeSandbox bool

// sandboxDirectory makes the directory /sandbox of this machine, for the tests that run beside each other.
var sandboxDirectory = sync.OnceValue(func() error {
	err := os.Mkdir(layout.Sandbox, 0o755)
	madeSandbox = err == nil
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
})

var update = flag.Bool("update", false, "rewrite the expected outputs of the scripts")

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, UpdateScripts: *update})
}
