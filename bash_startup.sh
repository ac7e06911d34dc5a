#!/bin/bash
# Every bash that reads BASH_ENV disables the builtins that replace programs which the
# policy decides on. A function replaces the harmless uses of command. Functions hide the
# builtins umask and ulimit, and set only what takes rights away. Nothing else can change
# the umask and the limits of this shell everywhere, so these two stay enabled.
# Closing stderr silences bash -x. The call of the last function restores $_.
{
# command looks up names with type, and runs programs and builtins instead of
# functions. Unlike the builtin, it cannot change the scope of its caller.
command() {
	{ local __agentsh; __agentsh_plan "$@"; shift "${__agentsh[1]}"; } 2>/dev/null
	case ${__agentsh[0]} in
	[vV]) __agentsh_describe "$@" ;;
	run) "$@" ;;
	own) "__agentsh_$1" "${@:2}" ;;
	global) "$1" -g "${@:2}" ;;
	file) (exec -a "$1" -- "${__agentsh[2]}" "${@:2}") ;;
	hidden) # a function has the name of the builtin
		__agentsh=$(declare -pf -- "$1") && unset -f -- "$1" || return
		"$@"
		set -- $?
		eval "$__agentsh"
		return "$1" ;;
	missing) __agentsh_fail "$1: command not found" 127 ;;
	frame) __agentsh_fail "command: $1: write it without command here" 1 ;;
	usage) __agentsh_fail "command: $1: invalid option" 2 || echo 'command: usage: command [-pVv] command [arg ...]' >&2; return 2 ;;
	esac
}
# __agentsh_plan sets the array __agentsh: the action of command, the number of
# options, the file to run. With -p it searches the standard directories.
__agentsh_plan() {
	local - n=0 described='' path=$PATH kinds=''
	set +xET
	while [[ ${1-} == -?* ]]; do
		n=$((n + 1))
		case $1 in
		--) shift; break ;;
		-*[!pvV]*) __agentsh=(usage $((n - 1))); return 0 ;;
		*p*) path=/bin:/usr/bin ;;
		esac
		described=$described${1//[!vV]/}
		shift
	done
	case $described,${1-} in
	?*,*) __agentsh=("${described: -1}" "$n" "$path"); return 0 ;;
	,declare | ,typeset) [[ ${FUNCNAME[2]-main} == @(main|source) ]] && __agentsh=(global "$n") || __agentsh=(frame "$n"); return 0 ;;
	,command) __agentsh=(run "$n"); return 0 ;;
	,kill | ,umask | ,ulimit) __agentsh=(own "$n"); return 0 ;;
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
# __agentsh_describe describes names as command -v and -V do.
__agentsh_describe() {
	{ local - name kind status=1; set +xET; } 2>/dev/null
	[[ ${__agentsh[2]} == "$PATH" ]] || local PATH=${__agentsh[2]}
	for name; do
		kind=$(type -t -- "$name" 2>/dev/null) || :
		case ${__agentsh[0]},$kind,$name in
		v,,*) continue ;;
		V,,*) __agentsh_fail "command: $name: not found" 1 || continue ;;
		v,alias,*) alias -- "$name" ;;
		v,file,*) type -p -- "$name" ;;
		v,*) printf '%s\n' "$name" ;;
		V,function,command | V,function,kill | V,function,umask | V,function,ulimit) echo "$name is a shell builtin" ;;
		*) type -- "$name" ;;
		esac
		status=0
	done
	return $(($# ? status : 0))
}
# __agentsh_fail TEXT STATUS prints an error of command or kill with the line of its caller.
__agentsh_fail() {
	local caller line
	__agentsh_caller
	echo "$caller: line $line: $1" >&2
	return "$2"
}
# __agentsh_caller sets caller and line: where command or kill was called.
__agentsh_caller() {
	local i=1
	while [[ ${FUNCNAME[i]} != @(command|kill) ]]; do i=$((i + 1)); done
	caller=${BASH_SOURCE[i + 1]:-$0} line=${BASH_LINENO[i]}
}
kill() { { local -; set +xET; } 2>/dev/null; __agentsh_kill "$@" || return; }
umask() { { local -; set +xET; } 2>/dev/null; __agentsh_umask "$@" || return; }
ulimit() { { local -; set +xET; } 2>/dev/null; __agentsh_ulimit "$@" || return; }
# __agentsh_kill runs the program kill, which does not know the jobs of this shell. A job such
# as %1 becomes the number of its process, with set -m of its process group. Groups come
# behind -SIGNAL and --: the kill of procps takes -TERM -17 for every process.
__agentsh_kill() {
	local word number signal=TERM changed='' targets=() words=("$@")
	case ${1-} in
	-[lL]* | --?*) __agentsh_send "$@"; return ;;
	-[sn]) signal=${2-}; shift $(($# < 2 ? $# : 2)) ;;
	-[!-]*) signal=${1#-}; shift ;;
	esac
	[[ ${1-} != -- ]] || shift
	for word; do
		if [[ $word == %* ]]; then
			number=$(jobs -p -- "$word" 2>/dev/null)
			[[ $number ]] || { __agentsh_fail "kill: $word: no such job" 1; return; }
			[[ $- != *m* ]] || number=-$number
			word=$number changed=yes
		fi
		[[ $word != -* ]] || changed=yes
		targets+=("$word")
	done
	[[ ! $changed ]] || words=("-$signal" -- "${targets[@]}")
	__agentsh_send "${words[@]}"
}
# __agentsh_send runs the program kill in a bash -p, which names the line of the caller in
# errors. An image may have no such program. Then the policy decides on 'env kill ...', which
# cannot run either, and the builtin of the bash -p sends the signal if that is allowed.
__agentsh_send() {
	local caller line lines env
	__agentsh_caller
	printf -v lines '%*s' "$((line > 1 ? line - 1 : 0))" ''
	lines=${lines// /$'\n'}
	if type -P kill >/dev/null; then
		"$BASH" -p -c "$lines"'enable -n kill; kill "$@"' "$caller" "$@"
		return
	fi
	env=$(type -P env) || { __agentsh_fail 'kill: no program kill is here: install procps' 127; return; }
	"$env" kill "$@" 2>/dev/null
	case $? in
	127) "$BASH" -p -c "$lines"'kill "$@"' "$caller" "$@" ;;
	*) __agentsh_fail 'kill: Permission denied' 126 ;;
	esac
}
# __agentsh_umask keeps the bits of 022, with which a session starts.
__agentsh_umask() {
	{ local - old new; set +exET; } 2>/dev/null
	old=$(unset -f umask && umask)
	new=$(unset -f umask && umask "$@" >/dev/null 2>&1 && umask) || { __agentsh_inherited umask "$@"; return; }
	if ((8#$old & ~8#$new & 8#022)); then
		echo "agentsh: umask: $new lets group or others write new files: keep the bits of 022, as 022, 027 and 077 do" >&2
		return 1
	fi
	__agentsh_uncovered umask umask "$@"
}
# __agentsh_ulimit lowers the hard limit together with the soft one, so the kernel keeps
# it low. The array values has the soft limits before and after.
__agentsh_ulimit() {
	{ local - IFS=$' \t\n' values letters=({c,d,e,f,i,l,m,n,q,r,s,t,u,v,x}); set +exET; } 2>/dev/null
	__agentsh_inherited ulimit "$@" || return
	[[ $* =~ ^(-[HSa]*[A-Za-z]?( |$))*$ ]] && return # it asks
	# shellcheck disable=SC2207 # words
	values=($(unset -f ulimit && __agentsh_soft && ulimit "$@" >/dev/null && __agentsh_soft)) || return
	__agentsh_uncovered ulimit __agentsh_lower "$@"
}
__agentsh_soft() {
	local i
	for i in "${letters[@]}"; do ulimit "-S$i"; done
}
__agentsh_lower() {
	local i old new
	ulimit "$@" >/dev/null || return
	for i in "${!letters[@]}"; do
		old=${values[i]} new=${values[i + ${#letters[@]}]}
		[[ $new == unlimited || $old != unlimited && $new -ge $old ]] || ulimit "-H${letters[i]}" "$new" || return
	done
}
# __agentsh_inherited prints what a builtin prints. A bash -p inherits the values of this
# shell, does not read BASH_ENV, and names the script in errors.
__agentsh_inherited() {
	local posix=+o
	[[ -o posix ]] && posix=-o
	"$BASH" -p $posix posix -c "$1"' "$@"' "$0" "${@:2}"
}
# __agentsh_uncovered NAME COMMAND... runs a command without the function NAME.
__agentsh_uncovered() {
	local saved status
	saved=$(declare -pf -- "$1")
	unset -f "$1" || return
	"${@:2}"
	status=$?
	eval "$saved"
	return "$status"
}
__agentsh_startup() { enable -n kill builtin command enable || :; unset -f __agentsh_startup; }
__agentsh_startup "${_-}"
} 2>&-
