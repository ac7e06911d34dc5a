package env

import (
	"strings"
	"sync"
)

const supervisorPrefix = "AGENTSH_"

// Environment has the values of [Baseline] that depend on the sandbox. Empty
// fields get the default in the comment.
type Environment struct {
	Home   string // "/"
	User   string // "sandbox"
	Shell  string // "/bin/sh"
	Path   string // the standard directories of a Linux system
	Lang   string // "C.UTF-8"
	Term   string // "dumb"
	TmpDir string // "/tmp"
}

// Baseline returns the initial environment of a command. It uses nothing from
// the calling process.
//
// SHLVL is 1 for this reason: bash as the top shell with a socket as standard
// input, or with SSH_CLIENT, assumes a remote login. It then does not read
// BASH_ENV. See bash(1), INVOCATION.
func Baseline(p Environment) []Var {
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	return []Var{
		{"PATH", or(p.Path, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")},
		{"HOME", or(p.Home, "/")},
		{"USER", or(p.User, "sandbox")},
		{"SHELL", or(p.Shell, "/bin/sh")},
		{"LANG", or(p.Lang, "C.UTF-8")},
		{"TERM", or(p.Term, "dumb")},
		{"TMPDIR", or(p.TmpDir, "/tmp")},
		{"SHLVL", "1"},
	}
}

// pinned reports whether a filter cannot remove a baseline variable.
func pinned(name string) bool { return name == "SHLVL" }

// fixedReason returns why a request can never set name, whatever the allow list
// has. It is empty for other names.
func fixedReason(name string) string {
	switch {
	case strings.HasPrefix(name, supervisorPrefix):
		return "reserved for the supervisor"
	case name == "SHLVL", name == "SSH_CLIENT", name == "SSH2_CLIENT":
		return "kept by the sandbox: with it bash can skip its startup file"
	}
	return ""
}

// Reserved reports whether .env files and a controller's variables must not set
// name. Such a name decides what programs load or where they search for files,
// or it is the supervisor's own.
func Reserved(name string) bool {
	if fixedReason(name) != "" || strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "BASH_FUNC_") {
		return true
	}
	switch name {
	case "PATH", "HOME", "SHELL", "USER", "LOGNAME", "IFS", "ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT",
		"PS4", "PROMPT_COMMAND", "BASH_XTRACEFD", "BASH_LOADABLES_PATH", "GLIBC_TUNABLES", "GCONV_PATH":
		return true
	}
	return false
}

// class is a part of the built-in drop list with its reason.
type class struct {
	why      string
	patterns string
}

// dropList has the variables that a request cannot set unless an allow list
// names them.
var dropList = []class{
	{"built-in drop list: makes the loader or the C library load or read something else", `
		LD_* GLIBC_TUNABLES GCONV_PATH GETCONF_DIR LOCPATH NLSPATH HOSTALIASES LOCALDOMAIN RES_OPTIONS RESOLV_HOST_CONF MALLOC_TRACE`},
	{"built-in drop list: makes a shell run or skip code", `
		BASH_ENV ENV SHELLOPTS BASHOPTS PS0 PS1 PS2 PS3 PS4 IFS CDPATH GLOBIGNORE BASH_FUNC_* BASH_LOADABLES_PATH
		BASH_XTRACEFD BASH_COMPAT POSIXLY_CORRECT PROMPT_COMMAND INPUTRC ZDOTDIR FPATH HISTFILE`},
	{"built-in drop list: makes an interpreter load or run something else", `
		PYTHON* PERL5* PERLLIB PERL_* RUBYOPT RUBYLIB GEM_HOME GEM_PATH BUNDLE_* NODE_OPTIONS NODE_PATH
		NODE_REPL_EXTERNAL_MODULE NODE_EXTRA_CA_CERTS DENO_* BUN_* JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH
		MAVEN_OPTS MAVEN_ARGS GRADLE_OPTS LUA_INIT* LUA_PATH* LUA_CPATH* PHPRC PHP_INI_SCAN_DIR R_PROFILE* R_ENVIRON* TCLLIBPATH
		OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES SSLKEYLOGFILE DOTNET_STARTUP_HOOKS CORECLR_* COR_*`},
	{"built-in drop list: makes a build or archive tool run something else", `
		MAKEFLAGS GNUMAKEFLAGS MAKEFILES GOFLAGS GOENV GCC_EXEC_PREFIX COMPILER_PATH RUSTC RUSTDOC RUSTC_WRAPPER
		RUSTC_WORKSPACE_WRAPPER RUSTFLAGS CARGO_BUILD_* CARGO_TARGET_* CMAKE_TOOLCHAIN_FILE TAR_OPTIONS RSYNC_RSH RSYNC_CONNECT_PROG
		CVS_RSH SVN_SSH LESSOPEN LESSCLOSE CURL_HOME WGETRC
		npm_config_script_shell npm_config_node_options npm_config_git npm_config_userconfig npm_config_globalconfig
		NPM_CONFIG_SCRIPT_SHELL NPM_CONFIG_NODE_OPTIONS NPM_CONFIG_GIT NPM_CONFIG_USERCONFIG NPM_CONFIG_GLOBALCONFIG`},
	{"built-in drop list: makes git or ssh run or read something else", `
		GIT_CONFIG* GIT_SSH GIT_SSH_COMMAND GIT_SSH_VARIANT GIT_EXEC_PATH GIT_TEMPLATE_DIR GIT_EXTERNAL_DIFF GIT_DIFF_OPTS
		GIT_PROXY_COMMAND GIT_ASKPASS GIT_EDITOR GIT_SEQUENCE_EDITOR GIT_PAGER GIT_DIR GIT_WORK_TREE GIT_COMMON_DIR
		GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_ALLOW_PROTOCOL GIT_PROTOCOL_FROM_USER GIT_TRACE*
		SSH_ASKPASS SSH_ASKPASS_REQUIRE SUDO_ASKPASS`},
	{"built-in drop list: a credential", `
		*_TOKEN *_SECRET *_SECRET_KEY *_PASSWORD *_PASSWD *_PASSPHRASE *_API_KEY *_APIKEY *_ACCESS_KEY *_ACCESS_KEY_ID
		*_PRIVATE_KEY *_CREDENTIALS *_CONNECTION_STRING *_DSN *_PAT TOKEN SECRET PASSWORD PASSWD API_KEY APIKEY
		DATABASE_URL REDIS_URL PGPASSWORD PGPASSFILE MYSQL_PWD SSHPASS SSH_AUTH_SOCK SSH_AGENT_PID GPG_AGENT_INFO KRB5CCNAME KUBECONFIG
		DOCKER_AUTH_CONFIG DOCKER_CONFIG NETRC AWS_PROFILE AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE
		*_AUTH npm_config__auth* NPM_CONFIG__AUTH*`},
}

// drops is dropList grouped by kind of pattern, computed once. It is used for
// every command.
var drops = sync.OnceValue(func() dropIndex { return split(dropList) })

type dropIndex struct {
	names    map[string]string // to the reason
	prefixes []dropPattern     // of X*
	suffixes []dropPattern     // of *X
}

type dropPattern struct{ text, why string }

func split(list []class) dropIndex {
	d := dropIndex{names: map[string]string{}}
	for _, c := range list {
		for _, p := range strings.Fields(c.patterns) {
			if prefix, ok := strings.CutSuffix(p, "*"); ok {
				d.prefixes = append(d.prefixes, dropPattern{prefix, c.why})
			} else if suffix, ok := strings.CutPrefix(p, "*"); ok {
				d.suffixes = append(d.suffixes, dropPattern{suffix, c.why})
			} else {
				d.names[p] = c.why
			}
		}
	}
	return d
}

// builtin returns why the built-in list drops name, or an empty string.
func builtin(name string) string {
	if why, ok := drops().names[name]; ok {
		return why
	}
	for _, p := range drops().prefixes {
		if strings.HasPrefix(name, p.text) {
			return p.why
		}
	}
	for _, s := range drops().suffixes {
		if strings.HasSuffix(name, s.text) {
			return s.why
		}
	}
	return ""
}
