package tools

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"agentsh/internal/text"
)

// Scripts that write the file $1. The new content comes first into a file with the name $2 in
// the same directory.
const (
	// targetScript sets f to the file that a link leads to, and t to the new one.
	targetScript = `export LC_ALL=C
f=$1
if [ -L "$f" ]; then
	f=$(readlink -f -- "$f" && echo .) || { echo 'the link leads nowhere' >&2; exit 1; }
	f=${f%??}
fi
d=${f%/*}
d=${d:-/}
t=$d/$2
b=${TMPDIR:-/tmp}/$2
put_back() { # gives f its old content, if b has it
	[ -f "$b" ] || return 0
	cat -- "$b" >"$f" && rm -f -- "$b" && return
	echo "the old content is in $b" >&2
	return 1
}
`
	// storeScript gives the new file the attributes and then the name of the old one. A reader sees
	// the old or the new content whole, and a failure leaves the old one. Where the
	// directory takes no file or the new one cannot get the attributes and names of the old one,
	// the old one is written in place, and gets its old content back if that fails: the policy may refuse
	// the new one. Without a place for the old content a file that can be read is not written. With $3 the old one must have that SHA-256.
	storeScript = targetScript + `may() { # runs a step; false: it is not permitted here
	why=$("$@" 2>&1) && return
	case $why in *'ermission denied' | *'peration not permitted' | *'ead-only file system' | *'esource busy') return 1 ;; esac
	printf '%s\n' "$why" >&2
	exit 1
}
create() { set -C; : >"$1"; }
[ -f "$f" ] || [ ! -e "$f" ] || exit 42
[ -d "$d" ] || mkdir -p -- "$d" || exit
done=created staged=
[ ! -e "$f" ] || done=replaced
trap '[ -z "$t" ] || rm -f -- "$t"; rm -f -- "$b.part"' EXIT
if ! may create "$t"; then
	t=
elif [ "$done" = created ] || may cp -a -- "$f" "$t"; then
	cat >"$t" || exit
	staged=yes
fi
if [ "$3" ]; then
	[ -f "$f" ] || exit 41
	[ "$(sha256sum <"$f")" = "$3  -" ] || exit 43
fi
if [ "$staged" ]; then
	set -- 1 1
	[ "$done" = created ] || set -- $(stat -c %u:%g:%a:%h -- "$t" "$f")
	if [ $# = 2 ] && [ "$1" = "$2" ] && may mv -f -- "$t" "$f"; then
		t=
		printf %s "$done"
		exit
	fi
	exec <"$t"
fi
if [ "$done" = replaced ] && [ -r "$f" ] && ! (umask 077 && cp -- "$f" "$b.part" && mv -f -- "$b.part" "$b"); then
	echo "not written: no place for the old content in ${b%/*} while the file is written in place" >&2
	exit 1
fi
if cat >"$f"; then
	rm -f -- "$b"
	printf '%s in place' "$done"
	exit
fi
[ "$done" = replaced ] || rm -f -- "$f"
put_back
exit 1`
	// sweepScript removes what a storeScript left that was killed.
	sweepScript = targetScript + `put_back
rm -f -- "$t" "$b.part"`
)

// stored is how a file was written.
type stored struct {
	created bool // it was not there before
	inPlace bool // others saw a part of the content meanwhile
}

// note says that a file was written in place.
func (s stored) note() string {
	if !s.inPlace {
		return ""
	}
	return "; written in place: its directory takes no other file, or it has several names"
}

// put writes a file.
func (t *Toolbox) put(ctx context.Context, name, content string) (stored, error) {
	return t.store(ctx, name, content, "")
}

// replace writes a file whose content is still the one that was read.
func (t *Toolbox) replace(ctx context.Context, name, before, after string) (stored, error) {
	sum := sha256.Sum256([]byte(before))
	return t.store(ctx, name, after, hex.EncodeToString(sum[:]))
}

// store writes a file. With a SHA-256 the file must have it.
func (t *Toolbox) store(ctx context.Context, name, content, sum string) (stored, error) {
	if len(content) > maxFile {
		return stored{}, fmt.Errorf("the new content has %d bytes: at most %d MiB", len(content), maxFile>>20)
	}
	file, temporary := t.path(name), ".agentsh-"+rand.Text()
	out, err := t.script(ctx, storeScript, strings.NewReader(content), 1<<10, file, temporary, sum)
	switch status(err) {
	case statusOther:
		return stored{}, fmt.Errorf("%s is no regular file", text.Visible(file))
	case statusChanged, statusMissing:
		return stored{}, fmt.Errorf("%s was changed meanwhile, and is left as it is: read it and edit it again", text.Visible(file))
	}
	if err != nil {
		return stored{}, fmt.Errorf("write %s: %w", text.Visible(file), errors.Join(err, t.sweep(ctx, err, file, temporary)))
	}
	how := out.String()
	return stored{created: strings.HasPrefix(how, "created"), inPlace: strings.HasSuffix(how, "in place")}, nil
}

// sweepWait bounds the removal of a temporary file.
const sweepWait = 10 * time.Second

// sweep removes the temporary file of a script that was killed. Others remove it themselves.
func (t *Toolbox) sweep(ctx context.Context, cause error, file, temporary string) error {
	var of *scriptError
	if errors.As(cause, &of) && !of.killed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepWait)
	defer cancel()
	if _, err := t.script(ctx, sweepScript, nil, 1<<10, file, temporary); err != nil {
		return fmt.Errorf("the temporary file %s beside it may be left: %w", temporary, err)
	}
	return nil
}
