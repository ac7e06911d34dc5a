package strictyaml

import (
	"regexp"
	"testing"
)

// Every short text has the type that the expressions of the core schema give it.
func TestNumbersAreThoseOfTheCoreSchema(t *testing.T) {
	core := regexp.MustCompile(`^([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$`)
	var try func(text string, more int)
	try = func(text string, more int) {
		if want := core.MatchString(text); isInt(text) != want {
			t.Errorf("%q is an integer: %v, want %v", text, !want, want)
		}
		if want := coreFloat().MatchString(text); isFloat(text) != want {
			t.Errorf("%q is a number: %v, want %v", text, !want, want)
		}
		if more == 0 {
			return
		}
		for _, c := range []string{"+", "-", ".", "0", "7", "9", "o", "x", "f", "e", "i", "_", " ", "\n", "\xff"} {
			try(text+c, more-1)
		}
	}
	try("", 4)
	for _, text := range []string{".inf", "-.Inf", ".nan", ".NaN", "inf", "nan", "1.5e+10", "127.0.0.1", "０"} {
		try(text, 0)
	}
}
