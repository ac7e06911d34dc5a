package policy

import "strings"

// multiCallNames are programs that are many programs in one file and choose by
// the name they are called by.
var multiCallNames = []string{"busybox", "toybox", "coreutils"}

// multiCall reports whether a program, by path or name, is a multi-call one.
func multiCall(program string) bool {
	name := base(program)
	for _, m := range multiCallNames {
		if strings.HasPrefix(name, m) && (len(name) == len(m) || name[len(m)] == '.' || name[len(m)] == '-') {
			return true
		}
	}
	return false
}

// appletName is the applet a multi-call program acts as: the base of its
// argv[0], less the dash of a login shell.
func appletName(argv []string) string {
	if len(argv) == 0 {
		return ""
	}
	return strings.TrimPrefix(base(argv[0]), "-")
}

// transparentWords are the wrappers whose payload is judged, as the files say.
func transparentWords(documents []*document) map[string]bool {
	words := map[string]bool{}
	for name := range wrappers {
		words[name] = true
	}
	for i := len(documents) - 1; i >= 0; i-- {
		for _, w := range documents[i].remove {
			delete(words, w)
		}
		for _, w := range documents[i].add {
			words[w] = true
		}
	}
	return words
}
