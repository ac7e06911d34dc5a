package policytest

import (
	"fmt"
	"strings"
	"testing"
)

func TestMistakesInTestsAreAnsweredByWhatWasMeant(t *testing.T) {
	for request, want := range map[string]string{
		`command: npm ci`:                       `a command is a list of words (write [npm, ci])`,
		`command: ['npm ci', x]`:                `command line, not the name of a program (write [npm, ci, x])`,
		`command: [npm], cwd: src`:              `write "${WORKSPACE}/src"`,
		`command: [npm], cwd: "**/src"`:         `is not a clean absolute path: paths begin with a slash (write "${WORKSPACE}/src"`,
		`file: {path: ., operation: read}`:      `write "${WORKSPACE}")`,
		`unix_socket: {path: run/x}`:            `"run/x" is not a clean absolute path`,
		`command: [npm], parent: bash`:          `paths begin with a slash`,
		`command: [“npm”]`:                      `write npm`,
		`file: {path: ~/x, operation: read}`:    `~ is not expanded (write ${HOME}/x)`,
		`file: {path: "$HOME/x"}`:               `write "${HOME}/x"`,
		`network: {domain: "https://a.test"}`:   `write domain: a.test and port: 443`,
		`network: {domain: "a.test:443"}`:       `write domain: a.test and port: 443`,
		`network: {address: "10.0.0.1:80"}`:     `write address: "10.0.0.1" and port: 80`,
		`network: {address: a.test}`:            `write domain: a.test`,
		`network: {domain: a, binary: curl}`:    `paths begin with a slash`,
		`unix_socket: {path: unix:///run/x}`:    `write /run/x`,
		`unix_socket: {path: /x, operation: c}`: `unknown operation "c"`,
		`signal: {signal: -9, target: self}`:    `write 9`,
		`signal: {signal: 9, target: child}`:    `unknown target "child"`,
		`variable: "$PATH"`:                     `write PATH`,
	} {
		text := fmt.Sprintf("policy: p.yaml\ntests:\n- {name: a, %s, expect: deny}\n", request)
		_, err := ParseSuite("x_test.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "x_test.yaml:3:") {
			t.Errorf("%s: %v\nwant %s", request, err, want)
		}
	}
}

func TestAPolicyIsNoFileOfTests(t *testing.T) {
	_, err := ParseSuite("d/strict.yaml", []byte("version: 1\nname: x\ncommand_rules: []\nfile_rules: []\n"))
	want := "d/strict.yaml:1:1: this is a policy, not a file of tests (write its tests in strict_test.yaml, which begins with 'policy: strict.yaml')"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
