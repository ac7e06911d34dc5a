package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"agentsh/internal/agentfile"
	"agentsh/internal/stdio"
	"agentsh/internal/wire"
)

// machines are the names that uname(1) has for the architectures of agentsh.
var machines = map[string]string{"amd64": "Linux/x86_64", "arm64": "Linux/aarch64"}

// supervisor is an agentsh program of this host.
type supervisor struct {
	path   string
	size   int64
	digest string // SHA-256, hex
}

// findSupervisors returns the paths of the programs for all architectures that this host has. named
// is the program that the operator named; it replaces the one for its architecture.
func findSupervisors(named string) (map[string]string, error) {
	found := map[string]string{}
	var unusable, failed error
	used := named == ""
	for arch := range machines {
		if named != "" {
			err := agentfile.Check(named, arch)
			if err == nil {
				found[arch], used = named, true
				continue
			}
			unusable = err
		}
		path, err := agentfile.Find(arch)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		found[arch] = path
	}
	if !used {
		return nil, fmt.Errorf("find supervisor: %w", unusable)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("find supervisor: %w", failed)
	}
	return found, nil
}

func readSupervisors(files map[string]string) (map[string]supervisor, error) {
	programs := map[string]supervisor{}
	for arch, path := range files {
		var err error
		if programs[arch], err = readSupervisor(path); err != nil {
			return nil, fmt.Errorf("read supervisor: %w", err)
		}
	}
	return programs, nil
}

// seen are the supervisors that this process has read. A program that was changed has
// another identity.
var seen sync.Map // of identity

// identity is a file in one state.
type identity struct {
	path             string
	device, inode    uint64
	size             int64
	modified, change syscall.Timespec
}

func identify(path string, f *os.File) (identity, error) {
	info, err := f.Stat()
	if err != nil {
		return identity{}, err
	}
	s, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return identity{}, errors.New("its state is unknown")
	}
	return identity{path, s.Dev, s.Ino, s.Size, s.Mtim, s.Ctim}, nil
}

func readSupervisor(path string) (supervisor, error) {
	f, err := os.Open(path)
	if err != nil {
		return supervisor{}, err
	}
	defer f.Close()
	id, err := identify(path, f)
	if err != nil {
		return supervisor{}, fmt.Errorf("read %s: %w", path, err)
	}
	if s, read := seen.Load(id); read {
		return s.(supervisor), nil
	}
	h := sha256.New()
	n, err := io.Copy(h, f)
	s := supervisor{path, n, hex.EncodeToString(h.Sum(nil))}
	if err == nil {
		seen.Store(id, s)
	}
	return s, err
}

// said begins the lines that the script at the place prints for this program.
const said = "agentsh-place "

// script makes the program at the place what this host has, and becomes it. A program that
// another stream has sent meanwhile stays: sandboxes run it. The script is one
// compound command: the shell has read all of it when it prints its first line, so the
// bytes after that line belong to what the script starts. openssl computes a digest in a third of the
// time that sha256sum needs.
const script = `{ umask 077; LC_ALL=C; export LC_ALL
say() { printf '\n%s%s\n' 'agentsh-''place ' "$*"; }
private() { [ -d "$1" ] || mkdir -p "$1" 2>/dev/null; [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] &&
case $(ls -ld "$1") in drwx------*) [ -w "$1" ];; *) false;; esac; }
same() { [ -f "$1" ] && [ ! -L "$1" ] || return 1
h=$(openssl dgst -sha256 -r <"$1" 2>/dev/null); [ "${h%% *}" = "$g" ] || h=$(sha256sum <"$1" 2>/dev/null) && [ "${h%% *}" = "$g" ]; }
runs() { [ -x "$1/agentsh-$g" ] || { t=$1/new-$$; : >"$t" && chmod 700 "$t" && "$t" </dev/null 2>/dev/null; x=$?; rm -f "$t"; [ "$x" = 0 ]; }; }
m=$(uname -sm); m=${m%% *}/${m#* }; g=; n=
case $m in
CASES
esac
d=
if [ -n "${HOME%/}" ] && private "$HOME/.cache/agentsh" && runs "$HOME/.cache/agentsh"; then d=$HOME/.cache/agentsh
else c=/var/tmp/agentsh-programs-$(id -u); if private "$c" && runs "$c"; then d=$c; fi
fi
p=$d/agentsh-$g; t=$d/new-$$
if [ -z "$g" ]; then say none "$m"
elif [ -z "$d" ]; then say error "no directory for programs: make ~/.cache/agentsh with mode 0700 where programs may run (no noexec)"
elif same "$p"; then say start; touch "$p"
else say need "$a"; head -c "$n" >"$t"
if [ "$(wc -c <"$t" | tr -d ' ')" != "$n" ]; then rm -f "$t"; g=; say error "$d: only a part of the program could be written: free some room there, or set HOME to a larger file system"
elif { command -v openssl || command -v sha256sum; } >/dev/null && ! same "$t"; then rm -f "$t"; g=; say error "the program arrived changed"
elif chmod 755 "$t" && { { ln "$t" "$p" 2>/dev/null || same "$p"; } && rm -f "$t" || mv -f "$t" "$p"; }; then say start; find "$d" -name 'agentsh-*' -mtime +30 -exec rm -f {} + 2>/dev/null
else g=; say error "$d: cannot write the program"
fi; fi
if [ -n "$g" ] && [ -n "$d" ]; then
umask 022; set --
for v in VARS; do eval "x=\${$v-}"; [ -z "$x" ] || set -- "$@" "$v=$x"; done
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
${HOME:+"HOME=$HOME"} ${XDG_STATE_HOME:+"XDG_STATE_HOME=$XDG_STATE_HOME"} "$@" "$p" serve --stdio
fi; exit 1; }
`

// makeScript is the script with the digests and sizes of programs. The variables of the place's network are
// passed on, see [wire.Bootstrap].
func makeScript(programs map[string]supervisor) string {
	var cases []string
	for arch, p := range programs {
		cases = append(cases, fmt.Sprintf("%s) a=%s g=%s n=%d;;", machines[arch], arch, p.digest, p.size))
	}
	return strings.NewReplacer("CASES", strings.Join(cases, "\n"), "VARS", strings.Join(wire.NetworkVars[:], " ")).Replace(script)
}

// deadliner is a stream with deadlines.
type deadliner interface {
	io.ReadWriteCloser
	SetDeadline(t time.Time) error
}

// limit sets the time for what follows on a stream. The end of ctx sets another one: it may have come before.
func limit(ctx context.Context, s deadliner, d time.Duration) error {
	return errors.Join(s.SetDeadline(time.Now().Add(d)), ctx.Err())
}

// Times for the place to answer, and to receive the program.
const (
	answerWait = time.Minute
	pushWait   = 10 * time.Minute
	lastWait   = 2 * time.Second // to say why it does not take the rest
)

// refusal is what the script said. It explains more than the end of the stream does.
type refusal string

func (r refusal) Error() string { return string(r) }

// refused is the error of a place whose script has said why it cannot go on.
func refused(why string) error { return refusal(fmt.Sprintf("the place: %.300q", why)) }

// cut is the error of a stream that ended although the place could be used.
type cut struct {
	error
	silent bool // agentsh of the place had said nothing: it may be unable to start
}

func (c cut) Unwrap() error { return c.error }

// cutWhile is the error of a stream that ended while the shell of a place worked.
func cutWhile(ctx context.Context, err error) error {
	if err = errors.Join(err, ctx.Err()); err == nil || ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, new(refusal)) {
		return err
	}
	return cut{err, true}
}

// enter starts agentsh serve --stdio over a stream to a shell. It sends the program first
// if the place lacks it.
func enter(ctx context.Context, s deadliner, programs map[string]supervisor) error {
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := limit(ctx, s, answerWait); err != nil {
		return err
	}
	began := time.Now()
	if _, err := io.WriteString(s, makeScript(programs)); err != nil {
		return unanswered(ctx, began, err)
	}
	for pushed := false; ; pushed = true {
		answer, err := stdio.ReadLine(s, said)
		if err != nil && pushed {
			return cutWhile(ctx, err)
		}
		if err != nil {
			return unanswered(ctx, began, err)
		}
		what, rest, _ := strings.Cut(answer, " ")
		switch {
		case what == "start":
			if err := limit(ctx, s, answerWait); err != nil {
				return err
			}
			return cutWhile(ctx, readHello(ctx, s))
		case what == "need" && !pushed && programs[rest].path != "":
			if err := limit(ctx, s, pushWait); err != nil {
				return err
			}
			if err := push(s, programs[rest]); err != nil {
				_ = limit(ctx, s, lastWait) // fails with the stream, as the read does
				if answer, failed := stdio.ReadLine(s, said+"error "); failed == nil {
					return refused(answer)
				}
				return cutWhile(ctx, err)
			}
		case what == "none" && rest == "/":
			return refusal("the shell of the place finds no uname on its PATH: install it, or set PATH there")
		case what == "none":
			return refusal(fmt.Sprintf("the place is %.50q: no agentsh for it beside agentctl or in /usr/lib/agentsh (agentsh-ARCH)", rest))
		default:
			return refused(rest)
		}
	}
}

// soonCut is how soon a stream without an answer must end to be tried again: a place that cannot be reached takes longer.
const soonCut = 5 * time.Second

// unanswered is the error of a stream that ended before the shell of a place had said anything. It may have been cut.
func unanswered(ctx context.Context, began time.Time, err error) error {
	if time.Since(began) < soonCut {
		return cutWhile(ctx, noShell(err))
	}
	return errors.Join(noShell(err), ctx.Err())
}

// noShell is the error of a stream on which no shell answers.
func noShell(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("no answer within %s", answerWait)
	}
	return fmt.Errorf("no shell at the place: %w: the address must lead to a POSIX shell that reads commands from its standard input", err)
}

func push(to io.Writer, p supervisor) error {
	f, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := io.Copy(to, io.LimitReader(f, p.size)); err != nil || n != p.size {
		return errors.Join(fmt.Errorf("send %s: %d of %d bytes", p.path, n, p.size), err)
	}
	return nil
}
