// Package gitguard judges what git reads in a repository. A repository that
// passes has no setting by which a later git, run by another user, executes a program
// or reads outside the tree.
//
// The package does no input or output: callers pass names and contents. The file
// server checks each new name ([JudgeFile], [IsRepository]); a controller checks whole
// trees ([Scan]).
//
// What git reads in a git directory, and what is required of it. The sources are
// gitrepository-layout(5), git-config(1), git-worktree(1), and in git's source
// setup.c (is_git_directory, read_gitfile_gently, get_common_dir_noenv),
// remote.c (read_remotes_file, read_branches_file), object-file.c
// (link_alt_odb_entry), sequencer.c (parse_insn_line, populate_opts_cb) and
// hook.c (find_hook).
//
//	HEAD, objects, refs        make a directory a repository; their content is data
//	config, config.worktree    keys of an allow list pass, see keys.go
//	commondir                  leads to another config: only "../.." in worktrees/NAME
//	core.worktree, .git        a work tree and a git directory do not lie in each other
//	gitdir                     of a worktree: a .git file inside the tree
//	.git as a file             leads to a git directory: inside the tree
//	hooks/*                    *.sample, and the hooks of git-lfs with their exact text
//	remotes/*, branches/*      remotes of old form, which may name any transport: empty
//	objects/info/alternates    inside the tree, as http-alternates
//	rebase-merge/git-rebase-todo, sequencer/todo
//	                           no exec
//	rebase-merge/strategy, sequencer/opts
//	                           merge strategies of git: another name is run as a program
//	symbolic links             none: git writes through logs/HEAD, FETCH_HEAD and others.
//	                           HEAD may be a link to refs/, and the trial link of git init stays
//
// The rest is data to git: index, packed-refs, logs, info/exclude,
// info/sparse-checkout, info/grafts, shallow, rr-cache, lfs. info/attributes only
// names drivers, as any .gitattributes does; what a driver runs is a setting.
package gitguard
