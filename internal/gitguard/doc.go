// Package gitguard checks the files that git reads in a repository. A repository that
// passes has no setting by which a later git, run by another user, executes a program
// or reads outside the tree.
//
// The package does no input or output: callers pass names and contents. The file
// server checks each new name ([CheckFile], [IsRepository]). A controller checks whole
// trees ([Scan]).
//
// The table lists the files that git reads in a git directory, and the condition that
// each must meet. The sources are gitrepository-layout(5), git-config(1) and
// git-worktree(1). In git's source they are setup.c (is_git_directory,
// read_gitfile_gently, get_common_dir_noenv), remote.c (read_remotes_file,
// read_branches_file), object-file.c (link_alt_odb_entry), sequencer.c
// (parse_insn_line, populate_opts_cb) and hook.c (find_hook).
//
//	HEAD, objects, refs        make a directory a repository; their content is data
//	config, config.worktree    only keys of an allow list, see keys.go
//	commondir                  refers to another config: only "../.." in worktrees/NAME
//	core.worktree, .git        neither the work tree nor the git directory contains the other
//	gitdir                     of a worktree: a .git file inside the tree
//	.git as a file             refers to a git directory, which must be inside the tree
//	hooks/*                    only *.sample, and the hooks of git-lfs with their exact text
//	remotes/*, branches/*      must be empty: remotes of the old form may name any transport
//	objects/info/alternates    only paths inside the tree; the same for http-alternates
//	rebase-merge/git-rebase-todo, sequencer/todo
//	                           no exec
//	rebase-merge/strategy, sequencer/opts
//	                           only git's own merge strategies: another name is run as a program
//	symbolic links             none: git writes through logs/HEAD, FETCH_HEAD and others.
//	                           Allowed are HEAD as a link to refs/ and the test link of git init
//
// Git treats the rest as data: index, packed-refs, logs, info/exclude,
// info/sparse-checkout, info/grafts, shallow, rr-cache, lfs. info/attributes only names drivers,
// as any .gitattributes does; the program of a driver is a setting.
package gitguard
