package agentsh

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The rules that the README's session names are where it says that they are.
func TestReadmeNamesRulesWhereTheyAre(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\(rule ([a-z-]+), ([a-z/.]+):(\d+):(\d+)\)`).FindAllStringSubmatch(string(readme), -1)
	if len(named) == 0 {
		t.Fatal("it names none")
	}
	for _, m := range named {
		policy, err := os.ReadFile(m[2])
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(policy), "\n")
		line, _ := strconv.Atoi(m[3])
		column, _ := strconv.Atoi(m[4])
		if line > len(lines) || column > len(lines[line-1]) ||
			lines[line-1][column-1:] != "name: "+m[1] && lines[line-1][column-1:] != "- name: "+m[1] {
			t.Errorf("%s is not what stands there", m[0])
		}
	}
}

// People read the README before anything else: it has to stay short.
func TestReadmeIsShort(t *testing.T) {
	const most = 90
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(readme), "\n"); n > most {
		t.Errorf("README.md has %d lines, at most %d", n, most)
	}
}
