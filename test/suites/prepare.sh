# shellcheck shell=bash disable=SC2154
# What the suites test and where it comes from. Sourced by run.sh; made once, in the cache.

prepare_go() {
	local package
	mkdir -p "$in/go"
	for package in ${GROUPS_OF_SUITE:-$(groups_go)}; do
		local to=$in/go/${package//\//_}.test
		if ! [ "$to" -nt "$(command -v go)" ]; then GOFLAGS='' nice -n 15 go test -c -o "$to" "$package"; fi
	done
	# The tests of os/exec and runtime build programs: what these need of the library is built once.
	[ -e "$work/cache/go" ] || GOCACHE=$work/cache/go GOFLAGS='' nice -n 15 go build os/exec net runtime/pprof runtime/trace runtime/cgo
}

groups_go() {
	echo os os/exec os/signal os/user io/fs path/filepath syscall internal/poll time sync archive/tar testing/fstest net crypto/tls net/http runtime
}

prepare_cpython() { :; }

groups_cpython() {
	echo test_os test_posix test_posixpath test_genericpath test_pathlib test_glob test_shutil test_tempfile test_stat test_filecmp test_file \
		test_fileio test_io test_largefile test_mmap test_fcntl test_ioctl test_select test_selectors test_epoll test_poll test_pty test_openpty \
		test_pwd test_grp test_resource test_signal test_threadsignals test_eintr test_fork1 test_wait3 test_wait4 test_popen test_subprocess \
		test_socket test_socketserver test_httpservers test_asyncore test_ssl test_tarfile test_mailbox test_dbm test_asyncio
}

# source_of downloads the source package of Debian into the current directory.
source_of() {
	local options
	mkdir -p lists state/partial
	sed 's/^deb /deb-src /; s/^Types: deb$/Types: deb-src/' /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources 2>/dev/null >lists/x || true
	if grep -q ^Types lists/x; then mv lists/x lists/src.sources; else mv lists/x lists/src.list; fi
	options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$PWD/lists" -o "Dir::State::lists=$PWD/state" -o APT::Sandbox::User=root)
	ls "$1"_*.dsc >/dev/null 2>&1 || { apt-get "${options[@]}" update && apt-get "${options[@]}" --download-only source "$1"; }
}

# Built once.
prepare_git() {
	[ ! -e "$in/git/.built" ] || return 0
	local from=$cache/git-src
	mkdir -p "$from"
	(
		cd "$from" || exit
		source_of git
		rm -rf "$in/git"
		mkdir -p "$in/git"
		tar xf git_*.orig.tar.* -C "$in/git" --strip-components=1
		tar xf git_*.debian.tar.* -C "$in/git"
		cd "$in/git" || exit
		while read -r patch; do patch -sp1 <"debian/patches/$patch"; done < <(grep -v '^#' debian/patches/series 2>/dev/null)
		nice -n 15 make -s -j"$(nproc)" NO_CURL=1 NO_EXPAT=1 NO_OPENSSL=1 NO_GETTEXT=1 NO_TCLTK=1 CFLAGS=-O1 all >"$from/build.log" 2>&1
		touch .built
	)
}

# 200 scripts, evenly from t0 to t7.
groups_git() {
	local all
	all=$(cd "$in/git/t" 2>/dev/null && ls t[0-7][0-9][0-9][0-9]-*.sh)
	awk -v n="$(wc -l <<<"$all")" 'int(NR * 200 / n) > int((NR - 1) * 200 / n) { sub(/\.sh$/, ""); print }' <<<"$all"
}

# The tests and the small programs that they run.
prepare_bash() {
	[ ! -e "$in/bash/.built" ] || return 0
	mkdir -p "$cache/bash-src"
	(
		cd "$cache/bash-src" || exit
		source_of bash
		rm -rf "$in/bash"
		mkdir -p "$in/bash"
		tar xf bash_*.orig.tar.* -C "$in/bash" --strip-components=1
		cd "$in/bash" || exit
		touch config.h
		for program in recho zecho xcase; do
			cc -O1 -w -DHAVE_UNISTD_H -DHAVE_STDLIB_H -I. -Iinclude -Ilib -o "$program" "support/$program.c" || exit
		done
		cp support/printenv.sh printenv
		chmod +x printenv
		touch .built
	)
}

# What has to do with processes, signals, descriptors and files. read: a time limit differs at each run.
groups_bash() {
	echo run-jobs run-trap run-execscript run-coproc run-procsub run-lastpipe run-comsub run-comsub-posix run-redir run-vredir run-heredoc \
		run-herestr run-input-test run-builtins run-errors run-set-e run-func run-test run-glob-test run-globstar run-dirstack run-history \
		run-posixpipe run-posix2 run-invert run-parser run-exportfunc run-varenv
}

prepare_jobs() { :; }
groups_jobs() { echo dash bash; }

prepare_stress_ng() { :; }

# Whole classes, without what takes the memory of the machine from others.
groups_stress_ng() {
	local class
	for class in filesystem pipe interrupt memory; do
		stress-ng --class "$class?" 2>/dev/null | sed 's/.*stressors: //' | tr ' ' '\n'
	done | sort -u | grep -vxE 'resources|oom-pipe|list|'
}

prepare_postgres() { :; }
groups_postgres() { echo postgres; }
prepare_redis() { :; }
groups_redis() { echo redis; }

# Unpacked, not installed: where systemd runs, the package would serve port 80 to everybody.
prepare_nginx() {
	[ ! -x "$in/nginx/usr/sbin/nginx" ] || return 0
	mkdir -p "$in/nginx"
	(cd "$in/nginx" && apt-get -qq -o APT::Sandbox::User=root download nginx && dpkg -x nginx_*.deb .)
}

groups_nginx() { echo nginx; }
prepare_chromium() { :; }
groups_chromium() { echo chromium; }

# seconds are what one group may take; a machine under load is given more by SECONDS_TIMES.
seconds() {
	case $1 in
	stress_ng) echo 40 ;;
	go | cpython) echo 600 ;;
	*) echo 300 ;;
	esac
}
