package agentsh

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// Each start of a program pays for what its packages do before main.
func TestNoPackageCompilesRegularExpressionsWhenAProgramStarts(t *testing.T) {
	for file := range sourceImports(t) {
		if strings.HasPrefix(file, "test/") || strings.HasPrefix(file, "internal/testenv/") {
			continue // part of no program of the product
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if vars, is := d.(*ast.GenDecl); is {
				for _, at := range compiled(vars) {
					t.Errorf("%s: write lazy.Regexp instead of regexp.MustCompile", files.Position(at))
				}
			}
		}
	}
}

// compiled returns the calls of regexp.MustCompile that a declaration makes itself.
func compiled(d *ast.GenDecl) (calls []token.Pos) {
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.SelectorExpr:
			if p, is := n.X.(*ast.Ident); is && p.Name == "regexp" && n.Sel.Name == "MustCompile" {
				calls = append(calls, n.Pos())
			}
		}
		return true
	})
	return calls
}
