package gitguard

import "strings"

// IsDotGit reports whether git treats a name as .git on some file system. That
// includes any case, git~1, and names that NTFS shortens (spaces, dots, streams). It
// also includes names with characters that HFS+ ignores. See is_ntfs_dotgit in git's
// path.c and is_hfs_dotgit in utf8.c.
func IsDotGit(name string) bool {
	if name == ".git" {
		return true
	}
	if len(name) < 4 {
		return false
	}
	for _, part := range strings.Split(name, `\`) { // a separator on Windows
		part, _, _ = strings.Cut(part, ":") // a stream
		part = strings.TrimRight(strings.ToLower(strings.Map(ignoredByHFS, part)), " .")
		if part == ".git" || part == "git~1" {
			return true
		}
	}
	return false
}

func ignoredByHFS(r rune) rune {
	switch {
	case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
		return -1
	case r == 'İ' || r == 'ı': // upper or lower case of i in some locales
		return 'i'
	}
	return r
}

// fold returns a form that is equal for all names of one file on a case-insensitive
// file system.
func fold(name string) string {
	if isPlain(name) {
		return name
	}
	return strings.TrimRight(strings.ToLower(strings.Map(ignoredByHFS, name)), " .")
}

func isPlain(name string) bool {
	for i := range len(name) {
		if c := name[i]; c >= 0x80 || c >= 'A' && c <= 'Z' || c == ' ' || c == '.' {
			return false
		}
	}
	return true
}
