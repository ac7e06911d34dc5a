package agentsh

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"strings"
	"testing"
)

// maxWalk is how many functions a denied connection may take.
const maxWalk = 10

// The map lists functions as package.Function or package.Type.Method, one list a
// paragraph of indented lines.
func TestTheWalksOfADeniedConnectionNameFunctionsThatExist(t *testing.T) {
	walks := walksOf(t, "doc.go")
	if len(walks) != 2 {
		t.Fatalf("%d walks: %v", len(walks), walks)
	}
	known := functions(t)
	for _, walk := range walks {
		if len(walk) > maxWalk {
			t.Errorf("%d functions, at most %d: %v", len(walk), maxWalk, walk)
		}
		for _, name := range walk {
			if !known[name] {
				t.Errorf("doc.go: there is no function %s", name)
			}
		}
	}
}

// walksOf returns the lists of functions in a package comment.
func walksOf(t *testing.T, file string) [][]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var walks [][]string
	within := false
	for line := range strings.Lines(string(data)) {
		text, indented := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "//\t")
		if !indented || !strings.Contains(text, ".") || strings.Contains(strings.ReplaceAll(text, ", ", ""), " ") {
			within = false
			continue
		}
		if !within {
			walks = append(walks, nil)
		}
		within = true
		for name := range strings.SplitSeq(text, ",") {
			if name = strings.TrimSpace(name); name != "" {
				walks[len(walks)-1] = append(walks[len(walks)-1], name)
			}
		}
	}
	return walks
}

// functions returns every function and method of the module, by the last element
// of its package's path.
func functions(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for file := range sourceImports(t) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				name := f.Name.Name
				if typ := receiver(f); typ != "" {
					name = typ + "." + name
				}
				known[path.Base(path.Dir(file))+"."+name] = true
			}
		}
	}
	return known
}
