package gitguard

import (
	"path"
	"slices"
	"strings"
	"sync"

	"agentsh/internal/lazy"
)

// check returns the reason why a value is not allowed; empty: it is allowed.
type check func(value string, at Location) string

// allowedKeys are the settings that neither start programs nor make git access files
// outside. They are listed as section.key, or as section.*.key with a subsection. See
// git-config(1) and git-lfs-config(5). A key that git introduces later is refused
// until it is listed here.
var allowedKeys = sync.OnceValue(func() map[string]check {
	out := map[string]check{}
	add := func(c check, keys ...string) {
		for _, k := range keys {
			out[lower(k)] = c
		}
	}
	addFormat(add)
	addRemotes(add)
	addHabits(add)
	addStorage(add)
	addLFS(add)
	return out
})

// addFormat adds the settings that describe the repository and its users.
func addFormat(add func(check, ...string)) {
	add(oneOf("0", "1"), "core.repositoryFormatVersion", "lfs.repositoryFormatVersion")
	add(oneOf("sha1", "sha256"), "extensions.objectFormat", "extensions.compatObjectFormat")
	add(oneOf("files", "reftable"), "extensions.refStorage")
	add(boolean, "extensions.worktreeConfig", "extensions.preciousObjects", "extensions.relativeWorktrees", "extensions.noop",
		"core.fileMode", "core.bare", "core.symlinks", "core.ignoreCase", "core.precomposeUnicode", "core.trustCtime",
		"core.quotePath", "core.sparseCheckout", "core.sparseCheckoutCone", "core.splitIndex", "core.preloadIndex",
		"core.multiPackIndex", "core.commitGraph", "core.useReplaceRefs", "core.warnAmbiguousRefs", "core.fsyncObjectFiles",
		"index.sparse", "index.skipHash", "feature.manyFiles", "feature.experimental")
	add(oneOf("true", "yes", "on", "1"), "core.protectHFS", "core.protectNTFS")
	add(oneOf("false", "no", "off", "0"), "core.fsmonitor")
	add(oneOf("/dev/null"), "core.hooksPath")
	add(oneOf("", "cat"), "core.pager")
	add(plainValue, "extensions.partialClone", "core.logAllRefUpdates", "core.hideDotFiles", "core.autocrlf", "core.eol", "core.safecrlf",
		"core.abbrev", "core.checkStat", "core.untrackedCache", "core.sharedRepository", "core.createObject", "core.fsync",
		"core.fsyncMethod", "core.whitespace", "core.disambiguate", "index.version", "index.threads", "core.notesRef")
	add(text, "core.commentChar", "core.commentString", "init.defaultBranch", "i18n.commitEncoding", "i18n.logOutputEncoding",
		"user.name", "user.email", "author.name", "author.email", "committer.name", "committer.email")
	add(boolean, "user.useConfigOnly")
	add(matching(`^[0-9A-Za-z@._+!-]*$`, "write the id of a key"), "user.signingKey")
	add(checkWorkTree, "core.worktree")
}

// addRemotes adds the settings for remotes and branches.
func addRemotes(add func(check, ...string)) {
	add(builtinURL, "remote.*.url", "remote.*.pushUrl", "branch.*.remote", "branch.*.pushRemote", "remote.pushDefault",
		"submodule.*.url", "checkout.defaultRemote", "clone.defaultRemoteName")
	add(text, "remote.*.fetch", "branch.*.merge", "branch.*.description", "branch.*.vscode-merge-base", "branch.*.gh-merge-base",
		"branch.*.github-pr-owner-number", "remote.*.gh-resolved", "submodule.active", "submodule.*.branch")
	add(matching(`^[A-Za-z0-9:=.+%,/_-]*$`, "write a filter as blob:none"), "remote.*.partialCloneFilter")
	add(oneOf("--tags", "--no-tags"), "remote.*.tagOpt")
	add(plainValue, "branch.*.rebase", "remote.*.followRemoteHEAD", "submodule.*.ignore",
		"submodule.*.fetchRecurseSubmodules", "submodule.alternateErrorStrategy", "submodule.alternateLocation",
		"submodule.fetchJobs", "fetch.recurseSubmodules", "push.recurseSubmodules")
	add(boolean, "remote.*.promisor", "remote.*.prune", "remote.*.pruneTags", "remote.*.skipDefaultUpdate", "remote.*.skipFetchAll",
		"submodule.*.active", "submodule.*.shallow", "submodule.recurse", "submodule.propagateBranches", "fetch.prune",
		"fetch.pruneTags", "fetch.writeCommitGraph", "fetch.fsckObjects", "transfer.fsckObjects", "receive.fsckObjects")
	add(oneOf("checkout", "rebase", "merge", "none"), "submodule.*.update")
	add(boolean, "receive.denyDeletes", "receive.denyNonFastForwards", "receive.denyDeleteCurrent", "uploadpack.allowFilter",
		"uploadpack.allowAnySHA1InWant", "uploadpack.allowTipSHA1InWant", "uploadpack.allowReachableSHA1InWant")
	add(plainValue, "receive.denyCurrentBranch", "fetch.parallel", "fetch.unpackLimit", "receive.unpackLimit", "transfer.unpackLimit")
}

// addHabits adds the settings for the behaviour and output of commands.
func addHabits(add func(check, ...string)) {
	add(plainValue, "push.default", "push.autoSetupRemote", "push.followTags", "push.useForceIfIncludes", "pull.rebase", "pull.ff",
		"merge.ff", "merge.conflictStyle", "merge.renames", "merge.autoStash", "merge.log", "merge.stat", "merge.renameLimit",
		"merge.directoryRenames", "rebase.autoStash", "rebase.autoSquash", "rebase.updateRefs", "rebase.stat", "rebase.backend",
		"rebase.missingCommitsCheck", "rebase.abbreviateCommands", "rebase.forkPoint", "rebase.rebaseMerges",
		"branch.autoSetupMerge", "branch.autoSetupRebase", "branch.sort", "tag.sort", "commit.gpgSign", "tag.gpgSign",
		"commit.verbose", "commit.status", "commit.cleanup", "rerere.enabled", "rerere.autoUpdate", "stash.showPatch",
		"stash.showStat", "stash.showIncludeUntracked", "checkout.guess", "checkout.workers", "worktree.guessRemote",
		"worktree.useRelativePaths", "status.short", "status.branch", "status.showStash", "status.showUntrackedFiles",
		"status.submoduleSummary", "status.relativePaths", "status.aheadBehind", "status.renames", "log.date", "log.decorate",
		"log.follow", "log.abbrevCommit", "diff.renames", "diff.algorithm", "diff.mnemonicPrefix", "diff.noPrefix",
		"diff.colorMoved", "diff.colorMovedWS", "diff.context", "diff.interHunkContext", "diff.submodule",
		"diff.ignoreSubmodules", "diff.renameLimit", "diff.wsErrorHighlight", "diff.indentHeuristic", "grep.lineNumber",
		"grep.patternType", "grep.extendedRegexp", "grep.column", "blame.date", "apply.whitespace", "am.threeWay", "am.keepcr",
		"column.ui", "column.branch", "column.status", "column.tag", "versionsort.suffix", "sendpack.sideband")
	add(matching(`^[A-Za-z0-9# -]*$`, "write the name of a colour"), "color.ui", "color.branch", "color.diff",
		"color.status", "color.interactive", "color.pager", "color.grep", "color.decorate", "color.showBranch")
	// rebase.instructionFormat is not allowed: with %n it writes lines of a todo list.
	add(plainValue, "fetch.negotiationAlgorithm", "fetch.output", "http.postBuffer")
	add(boolean, "core.longPaths", "difftool.prompt", "mergetool.prompt", "mergetool.keepBackup")
	add(matching(`^refs/notes/[A-Za-z0-9*/_-]*$`, "write a ref below refs/notes/"), "notes.rewriteRef", "notes.displayRef")
	for _, name := range []string{"pushUpdateRejected", "pushNonFFCurrent", "statusHints", "detachedHead", "addIgnoredFile",
		"addEmptyPathspec", "addEmbeddedRepo", "skippedCherryPicks", "diverging", "forceDeleteBranch", "graftFileDeprecated",
		"implicitIdentity", "mergeConflict", "objectNameWarning", "resolveConflict", "setUpstreamFailure", "submodulesNotUpdated",
		"updateSparsePath", "waitingForEditor", "worktreeAddOrphan", "defaultBranchName", "commitBeforeMerge", "refSyntax"} {
		add(boolean, "advice."+name)
	}
}

// addStorage adds the settings for the storage of objects.
func addStorage(add func(check, ...string)) {
	add(text, "gc.auto", "gc.autoDetach", "gc.autoPackLimit", "gc.pruneExpire", "gc.reflogExpire", "gc.reflogExpireUnreachable",
		"gc.worktreePruneExpire", "gc.writeCommitGraph", "gc.packRefs", "gc.aggressiveWindow", "gc.aggressiveDepth",
		"gc.bigPackThreshold", "gc.cruftPacks", "gc.logExpiry", "gc.rerereResolved", "gc.rerereUnresolved",
		"gc.*.reflogExpire", "gc.*.reflogExpireUnreachable", "maintenance.auto", "maintenance.autoDetach", "maintenance.strategy",
		"maintenance.*.enabled", "maintenance.*.schedule", "maintenance.*.auto", "pack.threads", "pack.window", "pack.depth",
		"pack.windowMemory", "pack.compression", "pack.packSizeLimit", "pack.deltaCacheSize", "pack.deltaCacheLimit",
		"pack.writeReverseIndex", "pack.readReverseIndex", "pack.useSparse", "pack.useBitmaps", "pack.indexVersion",
		"repack.writeBitmaps", "repack.useDeltaBaseOffset", "repack.packKeptObjects", "core.compression", "core.looseCompression",
		"core.bigFileThreshold", "core.packedGitWindowSize", "core.packedGitLimit", "core.deltaBaseCacheLimit",
		"commitGraph.generationVersion", "commitGraph.maxNewFilters", "commitGraph.readChangedPaths")
}

// addLFS adds the settings that git-lfs writes by itself, and its endpoints.
func addLFS(add func(check, ...string)) {
	add(builtinURL, "lfs.url", "lfs.pushUrl", "remote.*.lfsUrl", "remote.*.lfsPushUrl")
	add(plainValue, "lfs.*.access", "lfs.*.locksVerify", "lfs.locksVerify", "lfs.concurrentTransfers", "lfs.batch",
		"lfs.allowIncompletePush", "lfs.basicTransfersOnly", "lfs.skipDownloadErrors", "lfs.setLockableReadOnly",
		"lfs.pruneOffsetDays", "lfs.fetchRecentRefsDays", "lfs.fetchRecentCommitsDays", "lfs.fetchRecentAlways")
	add(text, "lfs.fetchInclude", "lfs.fetchExclude")
	add(oneOf("git-lfs clean -- %f"), "filter.*.clean")
	add(oneOf("git-lfs smudge -- %f", "git-lfs smudge --skip -- %f"), "filter.*.smudge")
	add(oneOf("git-lfs filter-process", "git-lfs filter-process --skip"), "filter.*.process")
	add(boolean, "filter.*.required")
}

// oneOf allows only the listed values.
func oneOf(list ...string) check {
	return func(value string, _ Location) string {
		if slices.Contains(list, value) {
			return ""
		}
		shown := slices.Clone(list)
		if i := slices.Index(shown, ""); i >= 0 {
			shown[i] = "empty"
		}
		return "the value may be " + strings.Join(shown, " or ") + " only"
	}
}

func boolean(value string, _ Location) string {
	switch lower(value) {
	case "", "true", "false", "yes", "no", "on", "off", "1", "0":
		return ""
	}
	return "the value may be true or false only"
}

// matching allows values that match an expression.
func matching(expression, hint string) check {
	form := lazy.Regexp(expression)
	return func(value string, _ Location) string {
		if form().MatchString(value) {
			return ""
		}
		return hint
	}
}

var plainValue = matching(`^[A-Za-z0-9][A-Za-z0-9 ,:./=_+-]*$|^-?[0-9]*$`, "the value may be a plain word or number")

// text allows text that git shows or compares and never runs.
func text(value string, _ Location) string {
	if len(value) <= 4096 && !strings.ContainsAny(value, "\n\r\x00") {
		return ""
	}
	return "the value may be one line of at most 4096 bytes"
}

// builtinSchemes are the transports that are built into git.
var builtinSchemes = []string{"https", "http", "ssh", "git", "file", "ssh+git", "git+ssh"}

var schemeBegin = lazy.Regexp(`^[A-Za-z0-9+.-]*::?`)

// builtinURL allows names of remotes, paths, and URLs whose transport runs no program
// that the URL selects. See transport_get in git's transport.c.
func builtinURL(value string, _ Location) string {
	const reason = "the value may be the name of a remote, a path, or an https, ssh, git, http or file URL"
	if value == "" || value[0] == '-' || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return reason
	}
	rest := value
	if scheme, after, ok := strings.Cut(value, "://"); ok && !strings.Contains(scheme, "/") {
		if !slices.Contains(builtinSchemes, scheme) {
			return reason
		}
		rest = after
	} else if strings.HasSuffix(schemeBegin().FindString(value), "::") {
		return reason // a remote helper, see gitremote-helpers(7)
	}
	host, _, _ := strings.Cut(rest, "/")
	if strings.HasPrefix(rest, "-") || strings.Contains(host, "@-") || strings.Contains(host, "[-") {
		return reason // ssh would treat it as an option
	}
	return ""
}

// inside reports whether a path, read from a file in at.Dir, stays in the trees of the
// guard. "a/.." is refused: if a is a link, the path refers to another directory. "."
// and empty parts change nothing: git clone --shared . writes one.
func (at Location) inside(name string) bool {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return false
	}
	down := path.IsAbs(name)
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." && down {
			return false
		}
		down = down || part != "" && part != "." && part != ".."
	}
	if !path.IsAbs(name) {
		name = at.Dir + "/" + name
	}
	return slices.ContainsFunc(at.Roots, func(root string) bool { return contains(root, path.Clean(name)) })
}

// contains reports whether a clean path is root or below it.
func contains(root, name string) bool {
	return name == root || strings.HasPrefix(name, strings.TrimSuffix(root, "/")+"/")
}

// home names the tree that contains the repository, for a message.
func (at Location) home() string {
	for _, root := range at.Roots {
		if contains(root, at.Dir) {
			return root
		}
	}
	return strings.Join(at.Roots, " or ")
}
