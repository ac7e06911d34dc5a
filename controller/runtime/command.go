package runtime

import (
	"errors"
	"io"
)

// command is the adapter of any other program, for example of an agent that is
// a script. The harness names the program with command.
type command struct{}

func (command) Name() string { return "command" }

func (command) Traits() Traits { return Traits{} }

func (command) Files(Invocation) ([]File, error) { return nil, nil }

func (command) State(Invocation) []string { return nil }

func (command) Transcripts(Invocation) []string { return nil }

func (command) Check(in Invocation) error {
	if len(in.Argv) == 0 {
		return errors.New("runtime command needs a command: a list, the program first")
	}
	return in.checkArgv()
}

func (command) Command(in Invocation) (Command, error) {
	run, env := runVars(in)
	return Command{Argv: in.Argv, Cwd: in.Start(), Env: env, Run: run}, nil
}

func (command) Parser(emit func(Event)) Parser { return newLineParser(emit) }

// lineParser emits an event for each line of output.
type lineParser struct {
	stdout, stderr *Lines
}

func newLineParser(emit func(Event)) *lineParser {
	line := func(stream string) *Lines {
		return NewLines(func(text string) { emit(Event{Kind: EventLine, Stream: stream, Text: text}) })
	}
	return &lineParser{stdout: line("stdout"), stderr: line("stderr")}
}

func (p *lineParser) Stdout() io.Writer { return p.stdout }
func (p *lineParser) Stderr() io.Writer { return p.stderr }

func (p *lineParser) Close() {
	p.stdout.Flush()
	p.stderr.Flush()
}
