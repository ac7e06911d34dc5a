package policy_test

import (
	"errors"
	"strings"
	"testing"

	"agentsh/policy"
)

func TestTheFirstLineOfAScriptIsReadAsTheKernelDoes(t *testing.T) {
	pad := strings.Repeat("x", 300)
	for _, c := range []struct {
		name, text string
		want       *policy.Script
		err        error
	}{
		{"no script", "\x7fELF", nil, nil},
		{"empty", "", nil, nil},
		{"a blank before the mark", "# !/bin/sh\n", nil, nil},
		{"an interpreter", "#!/bin/sh\necho", &policy.Script{"/bin/sh", ""}, nil},
		{"without newline", "#!/bin/sh", &policy.Script{"/bin/sh", ""}, nil},
		{"an argument without newline", "#!/bin/sh -e", &policy.Script{"/bin/sh", "-e"}, nil},
		{"blanks around", "#! \t/bin/sh \t \necho", &policy.Script{"/bin/sh", ""}, nil},
		{"an argument of several words", "#!/usr/bin/env -S python3  -u \n", &policy.Script{"/usr/bin/env", "-S python3  -u"}, nil},
		{"an argument cut by a null", "#!/bin/sh a\x00b\n", &policy.Script{"/bin/sh", "a"}, nil},
		{"blanks at the end of the file", "#!/bin/sh a \t", &policy.Script{"/bin/sh", "a \t"}, nil},
		{"a name cut by a null", "#!/bin/sh\x00x y\n", &policy.Script{"/bin/sh", ""}, nil},
		{"a null for a name", "#! \x00/bin/sh\n", &policy.Script{"", ""}, nil},
		{"a carriage return", "#!/bin/sh\r\n", &policy.Script{"/bin/sh\r", ""}, nil},
		{"a relative interpreter", "#!sh\n", &policy.Script{"sh", ""}, nil},
		{"nothing, as the whole file", "#!", &policy.Script{"", ""}, nil},
		{"nothing", "#!\n", nil, policy.ErrScriptLine},
		{"blanks only", "#!  \t \n/bin/sh\n", nil, policy.ErrScriptLine},
		{"a name that is cut", "#!/" + pad, nil, policy.ErrScriptLine},
		{"an argument that is cut", "#!/bin/sh " + pad, &policy.Script{"/bin/sh", pad[:policy.ShebangSize-2-len("/bin/sh ")-1]}, nil},
		{"all blanks", "#!" + strings.Repeat(" ", 300), nil, policy.ErrScriptLine},
		{"a name beyond the buffer", "#!" + strings.Repeat(" ", 300) + "/bin/sh\n", nil, policy.ErrScriptLine},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := policy.Shebang([]byte(c.text)[:min(len(c.text), policy.ShebangSize)])
			if !errors.Is(err, c.err) || (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
				t.Errorf("got %+v %v, want %+v %v", got, err, c.want, c.err)
			}
		})
	}
}

func FuzzShebang(f *testing.F) {
	f.Add([]byte("#!/bin/sh -e\n"))
	f.Add([]byte("#! \x00"))
	f.Fuzz(func(t *testing.T, head []byte) {
		head = head[:min(len(head), policy.ShebangSize)]
		if s, err := policy.Shebang(head); err == nil && s != nil && strings.ContainsAny(s.Interpreter, " \t\n\x00") {
			t.Errorf("%q has the interpreter %q", head, s.Interpreter)
		}
	})
}
