#!/bin/sh
# Run the Go that go.mod asks for. Go 1.21 and newer fetch it themselves. An older one, as of
# Debian 12, fetches it here as a module, once.
#
#   go.sh ARGUMENT ...     as go; $PATH has the go that is there
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
if ! command -v go >/dev/null; then
	echo "go.sh: no go in \$PATH: run 'make deps', which installs Debian's" >&2
	exit 127
fi
export GOTOOLCHAIN="${GOTOOLCHAIN:-auto}" # Debian's default is local
old() { env -u GOEXPERIMENT go "$@"; } # which knows no experiments of the Go of go.mod
case $(cd / && old version) in
'go version go1.'[0-9][!0-9]* | 'go version go1.1'[0-9][!0-9]* | 'go version go1.20'*) ;;
*)
	[ -n "${GOEXPERIMENT:-}" ] || exec go "$@"
	exec "$(cd "$here" && old env GOROOT)/bin/go" "$@" # of the Go that was fetched
	;;
esac
module=golang.org/toolchain@v0.0.1-go$(sed -n 's/^go //p' "$here/../go.mod").linux-$(old env GOARCH)
dir=$(cd / && old env GOMODCACHE)/$module
if [ ! -x "$dir/bin/go" ]; then
	echo "go.sh: fetching $module" >&2
	# shellcheck disable=SC2030 # for this call alone
	(cd / && env -u GOEXPERIMENT GOFLAGS=-mod=mod go mod download "$module")
	chmod +x "$dir"/pkg/tool/*/* "$dir"/bin/gofmt "$dir"/bin/go # a module has no modes
fi
export GOTOOLCHAIN=local PATH="$dir/bin:$PATH"
exec "$dir/bin/go" "$@"
