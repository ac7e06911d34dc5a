package policy

import (
	"strings"
	"testing"
)

func TestPayloads(t *testing.T) {
	tests := []struct{ argv, want string }{
		{"git push", ""},
		{"env", ""},
		{"env A=b -- kill 1", "-- kill 1"}, // after an assignment -- is a name
		{"env -i A=b kill 1", "kill 1"},
		{"env -i -- A=b kill 1", "kill 1"},
		{"env - kill", "kill"},
		{"env -u PATH -C /x --chdir /y --unset=Z kill", "kill"},
		{"env -iu PATH kill", "kill"},
		{"/usr/bin/env --argv0 x kill", "kill"},
		{"env -vS kill|-9|1", "kill -9 1"},
		{"nice -n 5 kill", "kill"},
		{"nice -5 kill", "kill"},
		{"nice --adjustment 5 kill", "kill"},
		{"nice --adj=5 kill", "kill"},
		{"nohup kill", "kill"},
		{"time -p kill", "kill"},
		{"time -f %e -o x kill", "kill"},
		{"timeout 5 kill", "kill"},
		{"timeout -k 3 -s KILL --preserve-status 5 kill", "kill"},
		{"timeout --signal KILL 5 kill", "kill"},
		{"xargs -0 -n 1 -P4 -I {} kill {}", "kill {}"},
		{"xargs -i kill", "kill"},
		{"xargs --max-args 2 kill", "kill"},
		{"sudo -u root -n A=b kill", "kill"},
		{"sudo --user root kill", "kill"},
		{"sudo -uroot kill", "kill"},
		{"doas -u root kill", "kill"},
		{"setsid -w kill", "kill"},
		{"stdbuf -oL -e 0 kill", "kill"},
		{"stdbuf --output=L kill", "kill"},
		{"nice env timeout 3 kill", "env timeout 3 kill; timeout 3 kill; kill"},
		{"busybox kill 1", "kill 1 !"},
		{"busybox --list", ""},
		{"busybox env kill", "env kill !; kill !"},
		{"busybox env /bin/kill", "env /bin/kill !; /bin/kill"},
		{"busybox busybox kill", "busybox kill !; kill !"},
		{"toybox kill", "kill !"},
		{"/lib64/ld-linux-x86-64.so.2 /bin/kill 1", "/bin/kill 1 !"},
		{"/lib64/ld-linux-x86-64.so.2 --library-path /x --preload=/y --inhibit-cache /bin/kill 1", "/bin/kill 1 !"},
		{"/lib64/ld-linux-x86-64.so.2 --argv0 x /bin/kill 1", "x 1 !"},
		{"/lib/ld-musl-x86_64.so.1 -- /bin/kill", "/bin/kill !"},
		{"ld.so env kill", "env kill !; kill"},
		{"/lib64/ld-linux-x86-64.so.2 --new /bin/kill", "error"},
		{"env -Z kill", "error"},
		{"sudo -@ kill", "error"},
		{strings.Repeat("nice ", 20) + "kill", "error"},
	}
	for _, test := range tests {
		argv := strings.Fields(test.argv)
		for i := range argv {
			argv[i] = strings.ReplaceAll(argv[i], "|", " ")
		}
		list, err := allPayloads(argv)
		var parts []string
		for _, p := range list {
			text := strings.Join(p.Argv, " ")
			if p.InProcess {
				text += " !"
			}
			parts = append(parts, text)
		}
		got := strings.Join(parts, "; ")
		if err != nil {
			got = "error"
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.argv, got, test.want)
		}
	}
}

func TestTheProgramOfALoaderIsFound(t *testing.T) {
	for _, c := range []struct{ argv, want string }{
		{"ld.so", ""},
		{"ld.so /bin/ls -l", "/bin/ls: /bin/ls -l"},
		{"any-name --list /bin/ls", "/bin/ls: /bin/ls"},
		{"ld.so --argv0 x /bin/ls --argv0", "/bin/ls: x --argv0"},
		{"ld.so --library-path=/x /bin/ls", "/bin/ls: /bin/ls"},
		{"ld.so -- /bin/ls", "/bin/ls: /bin/ls"},
		{"ld.so -- --weird/x", "--weird/x: --weird/x"},
		{"ld.so --preload /a", ""},
		{"ld.so --preload", ""},
		{"ld.so --what /bin/ls", "error"},
		{"ld.so -x /bin/ls", "error"},
		{"ld.so --list=1 /bin/ls", "error"},
	} {
		p, err := LoaderPayload(strings.Fields(c.argv))
		got := ""
		switch {
		case err != nil:
			got = "error"
		case p.Program != "":
			got = p.Program + ": " + strings.Join(p.Argv, " ")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.argv, got, c.want)
		}
	}
}

// allPayloads follows the arguments of any built-in wrapper.
func allPayloads(argv []string) ([]Payload, error) {
	return payloads(WrapperName(argv[0]), argv, func(name string) bool {
		_, known := wrappers()[name]
		return known
	})
}

func TestSplitString(t *testing.T) {
	for text, want := range map[string]string{
		`a b`: "a|b", ` a  b `: "a|b", `a\_b`: "a|b", `"a\_b" c`: "a b|c", `'a b'c`: "a bc", `a # c`: "a", `a\#b`: "a#b",
		`""`: "", `a "" b`: "a||b", `'a\'b'`: "a'b", `a\tb`: "a\tb", `a\cb`: "a", `${X}`: "error", `"$X"`: "error", `'$X'`: "$X",
		`'a`: "error", `a\`: "error",
	} {
		words, err := splitString(text)
		got := strings.Join(words, "|")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func FuzzPayloads(f *testing.F) {
	f.Add("env\n-iS\nkill -9 1\nx")
	f.Add("ld.so\n--argv0\na\nbusybox\nenv\nkill")
	f.Fuzz(func(t *testing.T, args string) {
		argv := strings.Split(args, "\n")
		list, _ := allPayloads(argv)
		for _, p := range list {
			if p.Program == "" && !p.InProcess || len(p.Argv) == 0 {
				t.Fatalf("%q: %+v", argv, p)
			}
		}
	})
}
