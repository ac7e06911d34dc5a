#!/bin/bash
# Every bash that reads BASH_ENV turns off the builtins that stand in for programs
# which the policy judges, or change what a command was started with. Functions give
# back what only asks: command, and umask and ulimit to read. Closing stderr keeps
# bash -x quiet; the last function gives $_ back as it was.
{
# command looks names up with type, and runs programs and builtins past functions.
# It cannot act on its caller's own frame as the builtin does.
command() {
	{ local __agentsh; __agentsh_plan "$@"; shift "${__agentsh[1]}"; } 2>/dev/null
	case ${__agentsh[0]} in
	[vV]) __agentsh_describe "$@" ;;
	run) "$@" ;;
	global) "$1" -g "${@:2}" ;;
	file) (exec -a "$1" -- "${__agentsh[2]}" "${@:2}") ;;
	hidden) # a builtin behind a function of its name
		__agentsh=$(declare -pf -- "$1") && unset -f -- "$1" || return
		"$@"
		set -- $?
		eval "$__agentsh"
		return "$1" ;;
	missing) __agentsh_say "$1: command not found" 127 ;;
	frame) __agentsh_say "command: $1: write it without command here" 1 ;;
	usage) __agentsh_say "command: $1: invalid option" 2 || echo 'command: usage: command [-pVv] command [arg ...]' >&2; return 2 ;;
	esac
}
# __agentsh_plan sets how command goes on: what it does, how many words are options,
# the file to run. With -p programs are looked for in the standard directories.
__agentsh_plan() {
	local - n=0 told='' path=$PATH kinds=''
	set +xET
	while [[ ${1-} == -?* ]]; do
		n=$((n + 1))
		case $1 in
		--) shift; break ;;
		-*[!pvV]*) __agentsh=(usage $((n - 1))); return 0 ;;
		*p*) path=/bin:/usr/bin ;;
		esac
		told=$told${1//[!vV]/}
		shift
	done
	case $told,${1-} in
	?*,*) __agentsh=("${told: -1}" "$n" "$path"); return 0 ;;
	,declare | ,typeset) [[ ${FUNCNAME[2]-main} == @(main|source) ]] && __agentsh=(global "$n") || __agentsh=(frame "$n"); return 0 ;;
	,command | ,umask | ,ulimit) __agentsh=(run "$n"); return 0 ;;
	,exec) [[ $# -gt 1 ]] || { __agentsh=(frame "$n"); return 0; } ;;
	,local | ,return | ,break | ,continue | ,shift) __agentsh=(frame "$n"); return 0 ;;
	esac
	__agentsh=(run "$n")
	[[ $# == 0 || $1 == */* ]] && return 0
	if declare -F -- "$1" >/dev/null || [[ $path != "$PATH" ]]; then
		kinds=$(PATH=$path type -at -- "$1") || :
		case $kinds in
		*function*builtin*) __agentsh=(hidden "$n") ;;
		*builtin*) ;;
		*file*) __agentsh=(file "$n" "$(PATH=$path type -P -- "$1")") ;;
		*) __agentsh=(missing "$n") ;;
		esac
	else
		type -- "$1" >/dev/null || __agentsh=(missing "$n")
	fi
	return 0
}
# __agentsh_describe prints what names are, as command -v and -V do.
__agentsh_describe() {
	{ local - name kind status=1; set +xET; } 2>/dev/null
	[[ ${__agentsh[2]} == "$PATH" ]] || local PATH=${__agentsh[2]}
	for name; do
		kind=$(type -t -- "$name" 2>/dev/null) || :
		case ${__agentsh[0]},$kind,$name in
		v,,*) continue ;;
		V,,*) __agentsh_say "command: $name: not found" 1 || continue ;;
		v,alias,*) alias -- "$name" ;;
		v,file,*) type -p -- "$name" ;;
		v,*) printf '%s\n' "$name" ;;
		V,function,command | V,function,umask | V,function,ulimit) echo "$name is a shell builtin" ;;
		*) type -- "$name" ;;
		esac
		status=0
	done
	return $(($# ? status : 0))
}
# __agentsh_say TEXT STATUS tells an error of command where its caller is.
__agentsh_say() {
	local i=1
	while [[ ${FUNCNAME[i]} != command ]]; do i=$((i + 1)); done
	echo "${BASH_SOURCE[i + 1]:-$0}: line ${BASH_LINENO[i]}: $1" >&2
	return "$2"
}
# umask and ulimit are asked of a bash -p, which reads no BASH_ENV: it has those of
# this one, and what it changed would be its own.
umask() { __agentsh_ask umask '^-[A-Za-z]*$' "$@"; }
ulimit() { __agentsh_ask ulimit '^-[HSa]*[A-Za-z]?$' "$@"; }
__agentsh_ask() {
	local arg asks=$2
	for arg in "${@:3}"; do
		[[ $arg =~ $asks ]] && continue
		echo "agentsh: $1: a command keeps what it was started with; without a value it is printed" >&2
		return 1
	done
	"$BASH" -p -c "$1"' "$@"' "$0" "${@:3}"
}
__agentsh_startup() { enable -n kill ulimit umask builtin command enable || :; unset -f __agentsh_startup; }
__agentsh_startup "${_-}"
} 2>&-
