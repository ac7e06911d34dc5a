package scan

import (
	"path"
	"strings"
	"sync"
	"unicode/utf8"

	"agentsh/internal/lazy"

	"mvdan.cc/sh/v3/syntax"
)

// trust is how much of a command can be left out as text that no program runs.
type trust int

const (
	trustNothing  trust = iota // names, or the reading of the text, are not certain
	trustComments              // something in the command may run what was stored or printed before
	trustData                  // messages, patterns and output are data
)

// set returns a function that returns a set of words. It is made when it is first used.
func set(list string) func() map[string]bool {
	return sync.OnceValue(func() map[string]bool {
		out := map[string]bool{}
		for _, word := range strings.Fields(list) {
			out[word] = true
		}
		return out
	})
}

var (
	// redefiners are commands that can give names another meaning, or change where
	// all that follows prints.
	redefiners = set("alias unalias enable exec eval . source builtin hash shopt mapfile readarray getopts compgen complete bind")
	// runners are programs that run text which they read, or which another command
	// stored. Some start another program.
	runners = set(`sh bash dash ash zsh ksh mksh fish csh tcsh busybox toybox trap fc history python python2 python3 perl ruby node deno bun php lua
		tclsh expect awk gawk mawk nawk parallel at batch ssh su script watch m4 ed ex vi vim nvim emacs gdb git-shell pwsh powershell osascript
		jshell ghci guile chroot nsenter unshare docker podman`)
	// readers may follow xargs: what they are given is data to them.
	readers = set(`grep egrep fgrep zgrep rg echo printf ls cat wc rm head tail basename dirname stat file mv cp touch mkdir rmdir gofmt du sort
		md5sum sha1sum sha256sum`)
	// harmlessGit are variables of git that start no program.
	harmlessGit = lazy.Regexp(`^GIT_(?:(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)|PAGER|TERMINAL_PROMPT|DIR|WORK_TREE)$`)
	// special are variables that change which programs run, or what a shell does
	// between commands.
	special = lazy.Regexp(`^(?:PATH|IFS|ENV|PS[0-9]|SHELL|SHELLOPTS|PROMPT_COMMAND|BASH.*|LD_.*|.*EDITOR|VISUAL|BROWSER|GIT_.*|GH_.*|GLAB_.*|GREP_.*|RIPGREP_.*)$`)
	// sedRuns matches scripts of sed with the command e or the flag e.
	sedRuns = lazy.Regexp(`(?:^|[;\n{}0-9$/!,])\s*e(?:\s|;|}|$)|[^\w\s][gpiImM0-9]*e[gpiImMw0-9]*\s*(?:[;\n}]|$)`)
)

// isSpecial reports whether setting a variable can change what commands do.
func isSpecial(name string) bool {
	return special().MatchString(name) && !harmlessGit().MatchString(name)
}

// otherwiseRead reports whether another shell, or another tool, may read a text
// differently: bytes that are not text, and quotes that not all shells know.
func otherwiseRead(command string) bool {
	return !utf8.ValidString(command) || strings.ContainsFunc(command, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' })
}

// trustOf judges a whole command.
func trustOf(file *syntax.File) trust {
	least := trustData
	syntax.Walk(file, func(n syntax.Node) bool {
		if n != nil && least > trustNothing {
			least = min(least, trustOfNode(n))
		}
		return least > trustNothing
	})
	return least
}

func trustOfNode(n syntax.Node) trust {
	nothing := false
	switch n := n.(type) {
	case *syntax.FuncDecl:
		nothing = true
	case *syntax.SglQuoted:
		nothing = n.Dollar && strings.Contains(n.Value, `\'`) // elsewhere the quotes end there
	case *syntax.Assign:
		if n.Name == nil { // of declare or export
			text, ok := static(n.Value)
			return pick(ok && strings.HasPrefix(text, "-"))
		}
		nothing = isSpecial(n.Name.Value)
	case *syntax.WordIter:
		nothing = isSpecial(n.Name.Value)
	case *syntax.ParamExp:
		nothing = n.Param != nil && n.Exp != nil && isSpecial(n.Param.Value)
	case *syntax.CallExpr:
		if len(n.Args) > 0 {
			return trustOfCall(n.Args)
		}
	}
	return pick(!nothing)
}

func pick(all bool) trust {
	if all {
		return trustData
	}
	return trustNothing
}

// trustOfCall judges one simple command.
func trustOfCall(args []*syntax.Word) trust {
	run, ok := command(args)
	if !ok {
		return trustNothing
	}
	first, _ := static(args[0])
	least := trustData
	if len(run) == 0 {
		return pick(path.Base(first) != "xargs" || len(args) == 1)
	}
	name, ok := plainName(run[0])
	switch {
	case !ok || redefiners()[path.Base(name)]:
		return trustNothing
	case strings.Contains(name, "/") && !systemProgram(name), path.Base(first) == "xargs" && !readers()[path.Base(name)]:
		least = trustComments
	}
	for _, w := range args {
		text, ok := static(w)
		switch {
		case ok && runners()[path.Base(text)]:
			least = trustComments
		case path.Base(name) == "sed" && (!ok || sedRuns().MatchString(text)):
			least = trustComments
		case name == "read" && (!ok || isSpecial(text)), name == "printf" && ok && isSpecial(text):
			return trustNothing
		}
	}
	return least
}

// plainName is the name of a command without quotes and expansions.
func plainName(w *syntax.Word) (string, bool) {
	name := w.Lit()
	return name, name != "" && !strings.ContainsAny(name, "\\*?[{~")
}

// systemProgram reports whether a path is that of an installed program.
func systemProgram(name string) bool {
	switch path.Dir(name) {
	case "/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin":
		return true
	}
	return false
}

// static is the text of a word that a shell does not expand.
func static(w *syntax.Word) (string, bool) {
	if w == nil {
		return "", false
	}
	var out strings.Builder
	for _, part := range w.Parts {
		switch p := part.(type) {
		case *syntax.Lit:
			out.WriteString(strings.ReplaceAll(p.Value, `\`, ""))
		case *syntax.SglQuoted:
			out.WriteString(p.Value)
		case *syntax.DblQuoted:
			for _, inner := range p.Parts {
				l, ok := inner.(*syntax.Lit)
				if !ok {
					return "", false
				}
				out.WriteString(l.Value)
			}
		default:
			return "", false
		}
	}
	return out.String(), !several(w)
}

// several reports whether a shell can make more than one word of a word.
func several(w *syntax.Word) bool {
	unquoted := ""
	for _, part := range w.Parts {
		switch p := part.(type) {
		case *syntax.Lit:
			if unquoted += p.Value; strings.ContainsAny(p.Value, "*?[") {
				return true
			}
		case *syntax.SglQuoted:
		case *syntax.DblQuoted:
			for _, inner := range p.Parts {
				if e, ok := inner.(*syntax.ParamExp); ok && (e.Excl || e.Index != nil || e.Param == nil || e.Param.Value == "@") {
					return true
				}
			}
		default:
			return true
		}
	}
	return strings.Contains(unquoted, "{") && (strings.Contains(unquoted, ",") || strings.Contains(unquoted, ".."))
}
