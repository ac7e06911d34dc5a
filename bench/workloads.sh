#!/bin/bash
# shellcheck disable=SC2317  # the work_ functions are called by their names
# Real work natively and in a session, and whether both leave the same.
#
#   workloads.sh DIR [NAME ...]      default: all of them
#
# DIR takes 2 GiB. What comes from elsewhere is fetched once, outside: a Go module
# and a package of npm by their own clients, the source of lua by apt. The session
# has no network. Each piece of work prints what it made to its standard output;
# both outputs must be equal, digest by digest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
agentsh=$here/../bin/agentsh policy=${POLICY:-$here/../packaging/policies/default.yaml}
mkdir -p "$1"
dir=$(readlink -f "$1")
shift
[ $# -gt 0 ] || set -- go npm git parallel make sqlite dpkg

fetch() {
	mkdir -p "$dir/in"
	cd "$dir/in"
	if [ ! -e go.done ]; then
		GOMODCACHE=$dir/in/gomod go mod download github.com/tidwall/gjson@v1.18.0
		cp -r gomod/github.com/tidwall/gjson@v1.18.0 gjson
		chmod -R u+w gjson gomod
		(cd gjson && GOMODCACHE=$dir/in/gomod go mod download)
		chmod -R u+w gomod
		touch go.done
	fi
	if [ ! -e npm.done ]; then
		npm pack --silent left-pad@1.3.0 >/dev/null
		tar xf left-pad-1.3.0.tgz
		(cd package && npm install --silent --no-audit --no-fund --cache "$dir/in/npmcache" && rm -rf node_modules)
		touch npm.done
	fi
	if [ ! -e git.done ]; then
		cp -r "$(go env GOROOT)/src" gosrc
		git -C gosrc init -q -b main
		git -C gosrc add -A
		GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z' git -C gosrc -c user.name=a -c user.email=a@b commit -qm all
		touch git.done
	fi
	if [ ! -e lua.done ]; then
		mkdir -p lists state/partial
		sed 's/^deb /deb-src /; s/^Types: deb$/Types: deb-src/' /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources 2>/dev/null >lists/x || true
		if grep -q ^Types lists/x; then mv lists/x lists/src.sources; else mv lists/x lists/src.list; fi
		apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$PWD/lists" -o Dir::State::lists="$PWD/state" -o APT::Sandbox::User=root update
		apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$PWD/lists" -o Dir::State::lists="$PWD/state" -o APT::Sandbox::User=root \
			--download-only source lua5.4
		mkdir lua
		tar xf lua5.4_*.orig.tar.* -C lua --strip-components=1
		touch lua.done
	fi
}

# digests lists the content of a tree.
digests() { (cd "$1" && find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum; find . -path ./.git -prune -o -type l -printf '%p %l\n' | sort | sha256sum); }

work_go() {
	cp -r ../in/gjson gjson
	cp -r ../in/gomod gomod
	cd gjson
	GOMODCACHE=$PWD/../gomod GOCACHE=$PWD/../gocache GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local go test -count=1 -v ./... 2>&1 |
		grep -E '^(---|ok|FAIL|PASS)' | sed -E 's/ *\(?[0-9.]+s\)?//' | sort
}

work_npm() {
	cp -r ../in/package package
	cp -r ../in/npmcache npmcache
	cd package
	npm ci --silent --no-audit --no-fund --offline --cache "$PWD/../npmcache"
	digests node_modules
	npm test --silent 2>&1 | grep -E '^(#|ok|not ok)' | sort | sha256sum
}

gitenv() {
	export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
	export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
	# No gc begins by itself: that of the workload would find it running.
	export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=gc.auto GIT_CONFIG_VALUE_0=0 GIT_CONFIG_KEY_1=maintenance.auto GIT_CONFIG_VALUE_1=false
}

work_git() {
	gitenv
	cp -r ../in/gosrc upstream
	git clone -q --no-hardlinks upstream clone
	cd clone
	for i in $(seq 20); do
		find . -path ./.git -prune -o -name "*.go" -print | sort | awk "NR % 200 == $i" | xargs sed -i "1s,^,// change $i\n,"
		git commit -qam "change $i"
	done
	git checkout -q -b topic HEAD~10
	for i in $(seq 5); do echo "$i" >"new$i"; git add "new$i"; git commit -qm "topic $i"; done
	git mv new1 fmt/new1
	git commit -qm move
	git rebase -q main
	git gc -q --prune=now
	git fsck --strict --no-progress --no-dangling
	git status --porcelain
	git rev-parse HEAD
	digests .
}

work_parallel() {
	gitenv
	git init -q --bare -b main shared.git
	git clone -q shared.git seed 2>/dev/null
	(cd seed && git commit -q --allow-empty -m seed && git push -q origin main)
	for w in 1 2 3 4; do
		(
			git clone -q shared.git "w$w"
			cd "w$w"
			for i in $(seq 25); do
				mkdir -p "d$w"
				echo "$w $i" >"d$w/f$i"
				git add -A
				git commit -qm "$w $i"
				until git push -q origin main 2>/dev/null; do git pull -q --rebase origin main; done
			done
		) &
	done
	wait
	git -C shared.git fsck --strict --no-progress --no-dangling
	git clone -q shared.git result
	git -C result rev-list --count HEAD
	digests result
}

work_make() {
	cp -r ../in/lua lua
	cd lua
	make -s -j2 linux MYCFLAGS=-DLUA_COMPAT_5_3 2>&1
	digests src
	src/lua -e 'local s = 0 for i = 1, 1e6 do s = s + i % 7 end print(s)'
}

work_sqlite() {
	sqlite3 a.db 'pragma journal_mode=wal;' 'create table t(a integer primary key, b text);' \
		"with recursive n(i) as (select 1 union all select i+1 from n where i < 200000) insert into t select i, 'row ' || i from n;" \
		'create index u on t(b);' "update t set b = b || '!' where a % 3 = 0;" 'delete from t where a % 7 = 0;'
	for w in 1 2 3; do
		(for i in $(seq 100); do sqlite3 -cmd '.timeout 60000' a.db "insert into t(b) values ('w$w $i');"; done) &
	done
	wait
	sqlite3 a.db 'pragma integrity_check;' 'vacuum;' 'pragma integrity_check;'
	sqlite3 a.db 'select count(*), sum(length(b)) from t;' "select b from t where b not like 'w%' order by a;" | sha256sum
}

work_dpkg() {
	mkdir -p tree/DEBIAN tree/usr/share
	cp -r ../in/lua tree/usr/share/lua
	printf 'Package: lua-tree\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: a tree\n' >tree/DEBIAN/control
	find tree -exec touch -hd 2026-01-01T00:00:00Z {} +
	SOURCE_DATE_EPOCH=1767225600 dpkg-deb --root-owner-group -Zgzip -b tree tree.deb >/dev/null
	sha256sum tree.deb
	dpkg-deb -R tree.deb back
	digests back
}

if [ "${WORKLOAD_INSIDE:-}" ]; then
	mkdir -p "$dir/$WORKLOAD_INSIDE"
	cd "$dir/$WORKLOAD_INSIDE"
	export HOME=$PWD
	"work_$1"
	exit
fi

fetch
logs=$(mktemp -d /var/tmp/agentsh-workloads.XXXXXX)
trap 'rm -rf "$logs" "$dir/native" "$dir/session"' EXIT
cp "$here/workloads.sh" "$dir/workloads.sh"
failed=0
printf '%-10s %12s %12s %8s   %s\n' workload 'native (s)' 'session (s)' ratio result
for name; do
	rm -rf "$dir/native" "$dir/session"
	begin=$(date +%s%N)
	WORKLOAD_INSIDE=native bash "$dir/workloads.sh" "$dir" "$name" >"$logs/native" 2>&1 || echo "exit status $?" >>"$logs/native"
	middle=$(date +%s%N)
	"$agentsh" exec -p "$policy" -w "$dir" --cwd "$dir" --audit "$logs/audit" -e WORKLOAD_INSIDE=session -- bash "$dir/workloads.sh" "$dir" "$name" \
		>"$logs/session" 2>"$logs/errors" || echo "exit status $?" >>"$logs/session"
	end=$(date +%s%N)
	verdict=same
	if ! [ -s "$logs/native" ] || ! cmp -s "$logs/native" "$logs/session"; then
		verdict=DIFFERENT failed=1
		diff "$logs/native" "$logs/session" | head -20 >&2 || true
		head -20 "$logs/errors" >&2
	fi
	awk -v name="$name" -v a=$((middle - begin)) -v b=$((end - middle)) -v v="$verdict" \
		'BEGIN { printf "%-10s %12.1f %12.1f %7.2fx   %s\n", name, a / 1e9, b / 1e9, b / a, v }'
done
exit $failed
