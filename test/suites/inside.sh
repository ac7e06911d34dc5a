#!/bin/sh
# Run groups of tests of one suite and leave what they print. The same script runs
# natively and in a session; the runner copies it into the workspace.
#
#   inside.sh SUITE GROUP ...
#
# SUITES_DIR  the workspace: in/ what is tested, tmp/ and cache/ to write to, out/ the output
# SUITES_SECONDS  of one group; then it is ended
# SUITES_TIMES  the factor that SUITES_SECONDS holds already: for the limits of single steps
#
# A group leaves out/GROUP.out, .err and .status: the exit status of timeout(1), or what it ran.
set -u
dir=$SUITES_DIR out=$SUITES_DIR/out tmp=$SUITES_DIR/tmp times=${SUITES_TIMES:-1}

go_() {
	cd "$GOROOT/src/$1" || return
	# The tests of these packages build programs of their own.
	GOCACHE=$dir/cache/go GOFLAGS='' GOPROXY=off GOTOOLCHAIN=local GOTELEMETRY=off TMPDIR=$tmp \
		"$dir/in/go/$(echo "$1" | tr / _).test" -test.short -test.v=test2json -test.timeout "$((SUITES_SECONDS - 10))s"
}

cpython_() {
	cd "$tmp" || return
	TMPDIR=$tmp /usr/bin/python3 "$dir/cpython.py" "$1" "$out/$1.tests"
}

git_() {
	cd "$dir/in/git/t" || return
	TEST_OUTPUT_DIRECTORY=$tmp/git-results sh "./$1.sh" --root="$tmp/git"
}

stress_ng_() {
	cd "$tmp" || return
	stress-ng "--$1" 1 --timeout 1 --verify --temp-path "$tmp"
}

# step runs one step of a server's test and tells how it went.
step() {
	name=$1
	shift
	if "$@" >>"$tmp/step.log" 2>&1; then echo "step $name ok"; else
		echo "step $name failed"
		tail -n 5 "$tmp/step.log" >&2
	fi
}

# holds compares what a command prints with what is expected.
holds() {
	want=$1
	shift
	got=$("$@") || return
	[ "$got" = "$want" ] || { echo "expected: $want; got: $got"; return 1; }
}

# page reads a page; "$@" says where.
page() {
	curl -sS -m "$((2 * times))" "$@"
}

# until_ok waits until a command works, at least two seconds.
until_ok() {
	n=0
	until "$@"; do
		n=$((n + 1))
		[ "$n" -lt "$((20 * times))" ] || return 1
		sleep 0.1
	done
}

# One script of bash's own tests, by the bash that is installed. What it prints beyond what is
# expected differs on every machine, so its digest is the result.
bash_() {
	cd "$dir/in/bash/tests" || return
	PATH=$dir/in/bash:$PATH BUILD_DIR=$dir/in/bash THIS_SH=/bin/bash BASH_TSTOUT=$tmp/printed TMPDIR=$tmp sh "./$1" >"$tmp/differences" 2>/dev/null
	echo "step $1 $(sed "s,$dir,DIR,g; s/[0-9][0-9]*/N/g" "$tmp/differences" | cksum | tr ' ' -)"
	cat "$tmp/differences" >&2
}

# Job control of a shell on a terminal.
jobs_() {
	cd "$tmp" || return
	TMPDIR=$tmp /usr/bin/python3 "$dir/jobs.py" "$1"
}

postgres_() {
	pg=$SUITES_PG data=$tmp/pgdata
	export PGHOST="$tmp" PGUSER=postgres PGDATABASE=postgres
	step initdb "$pg/initdb" -D "$data" -U postgres -A trust --no-sync
	step start "$pg/pg_ctl" -D "$data" -w -t "$((60 * times))" -l "$tmp/pg.log" -o "-k $tmp -c listen_addresses=127.0.0.1 -c port=5439" start
	export PGPORT=5439
	step tables "$pg/pgbench" -q -i -s 1
	step pgbench "$pg/pgbench" -n -c 4 -j 2 -t 100
	step pgbench-tcp "$pg/pgbench" -h 127.0.0.1 -n -c 2 -t 50
	step parallel "$pg/psql" -Atqc 'set max_parallel_workers_per_gather = 2; set min_parallel_table_scan_size = 0; set parallel_setup_cost = 0; select count(*) from pgbench_accounts'
	step consistent holds t "$pg/psql" -Atqc 'select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers)'
	step checkpoint "$pg/psql" -Atqc checkpoint
	step reload "$pg/pg_ctl" -D "$data" reload
	step crash "$pg/pg_ctl" -D "$data" -m immediate -t "$((60 * times))" stop
	step recovery "$pg/pg_ctl" -D "$data" -w -t "$((60 * times))" -l "$tmp/pg.log" -o "-k $tmp -c listen_addresses= -c port=5439" start
	step recovered holds 100000 "$pg/psql" -Atqc 'select count(*) from pgbench_accounts'
	step stop "$pg/pg_ctl" -D "$data" -w -t "$((60 * times))" stop
}

redis_() {
	sock=$tmp/redis.sock
	step start redis-server --daemonize yes --dir "$tmp" --unixsocket "$sock" --bind 127.0.0.1 --port 6399 --appendonly yes --logfile "$tmp/redis.log"
	step ping until_ok holds PONG redis-cli -s "$sock" ping
	for test in ping set get incr lpush rpop sadd hset zadd lrange_100 mset; do
		step "$test" redis-benchmark -q -n 500 -c 10 -s "$sock" -t "$test"
	done
	step tcp redis-benchmark -q -n 500 -c 10 -h 127.0.0.1 -p 6399 -t set,get
	step save holds OK redis-cli -s "$sock" save
	step bgsave redis-cli -s "$sock" bgsave
	step rewrite redis-cli -s "$sock" bgrewriteaof
	step shutdown redis-cli -s "$sock" shutdown nosave
}

nginx_() {
	PATH=$dir/in/nginx/usr/sbin:$PATH
	mkdir -p "$tmp/nginx/html"
	echo 'a page' >"$tmp/nginx/html/index.html"
	cat >"$tmp/nginx/nginx.conf" <<-END
		worker_processes 2;
		pid $tmp/nginx/pid;
		error_log $tmp/nginx/error.log;
		events { worker_connections 64; }
		http {
			access_log off;
			client_body_temp_path $tmp/nginx/b; proxy_temp_path $tmp/nginx/p; fastcgi_temp_path $tmp/nginx/f;
			uwsgi_temp_path $tmp/nginx/u; scgi_temp_path $tmp/nginx/s;
			server { listen 127.0.0.1:8099; root $tmp/nginx/html; location /p/ { proxy_pass http://unix:$tmp/nginx/sock:/; } }
			server { listen unix:$tmp/nginx/sock; root $tmp/nginx/html; sendfile on; }
		}
	END
	step configuration nginx -t -p "$tmp/nginx" -e stderr -c "$tmp/nginx/nginx.conf"
	step start nginx -p "$tmp/nginx" -e stderr -c "$tmp/nginx/nginx.conf"
	step get until_ok holds 'a page' page http://127.0.0.1:8099/
	step get-unix holds 'a page' page --unix-socket "$tmp/nginx/sock" http://localhost/
	step proxy holds 'a page' page http://127.0.0.1:8099/p/
	step reload nginx -p "$tmp/nginx" -e stderr -c "$tmp/nginx/nginx.conf" -s reload
	step get-again until_ok holds 'a page' page http://127.0.0.1:8099/
	step quit nginx -p "$tmp/nginx" -e stderr -c "$tmp/nginx/nginx.conf" -s quit
	tail -n 5 "$tmp/nginx/error.log" >&2
}

# shellcheck disable=SC2016 # the inner shells expand
chromium_() {
	mkdir -p "$tmp/page"
	echo '<!doctype html><title>t</title><body style="background:#0a0"><h1>a page</h1><script>document.title = [1, 2, 3].map(x => x * 2).join()</script>' >"$tmp/page/a.html"
	limit=$((120 * times))
	set -- --disable-gpu --disable-dev-shm-usage --no-first-run --user-data-dir="$tmp/profile" --window-size=400,300
	step dump-dom sh -c 'limit=$1 && shift && timeout "$limit" chromium --headless --no-sandbox "$@" --dump-dom "file://$0/page/a.html" | grep -q "<title>2,4,6</title>"' "$tmp" "$limit" "$@"
	step screenshot timeout "$limit" chromium --headless --no-sandbox "$@" --screenshot="$tmp/page/a.png" "file://$tmp/page/a.html"
	step is-picture sh -c 'head -c 8 "$0" | od -An -tx1 | grep -q "89 50 4e 47"' "$tmp/page/a.png"
	step its-own-sandbox timeout "$limit" chromium --headless "$@" --screenshot="$tmp/page/b.png" "file://$tmp/page/a.html"
}

if [ "$1" = one ]; then
	"$2_" "$3"
	exit
fi
suite=$1
shift
umask 022
for group; do
	file=$(echo "$group" | tr / _)
	mkdir -p "$tmp"
	timeout -k 10 "$SUITES_SECONDS" sh "$dir/inside.sh" one "$suite" "$group" >"$out/$file.out" 2>"$out/$file.err" </dev/null
	echo $? >"$out/$file.status"
	chmod -R u+rwX "$tmp" 2>/dev/null
	rm -rf "$tmp"
done
