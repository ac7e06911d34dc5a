package agentsh

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// The sizes that a reader can hold in the head.
const (
	maxMethods = 40  // of one type
	maxFields  = 15  // of one type of the file server, the supervisor or the controller
	maxFiles   = 30  // of one package, tests not counted
	maxColumns = 140 // of one line of Go, a tab is one
)

// sourceType is a type of the product and where it stands.
type sourceType struct {
	pkg, name, file string
	methods, fields int
	data            bool // a form of a message or a document: its fields have tags
}

func TestNoTypeIsTooLarge(t *testing.T) {
	for _, typ := range sourceTypes(t) {
		if typ.methods > maxMethods {
			t.Errorf("%s: %s has %d methods, at most %d: pass values to functions, or make a type of a part", typ.file, typ.name, typ.methods, maxMethods)
		}
		if typ.fields > maxFields && !typ.data && holdsFields(typ.pkg) {
			t.Errorf("%s: %s has %d fields, at most %d: group those that change together", typ.file, typ.name, typ.fields, maxFields)
		}
	}
}

// holdsFields reports the packages whose types may not have many fields.
func holdsFields(pkg string) bool {
	root, _, _ := strings.Cut(pkg, "/")
	return root == "fuse" || root == "supervisor" || root == "controller"
}

// sourceTypes returns every named type of the module without those of tests.
func sourceTypes(t *testing.T) map[string]*sourceType {
	t.Helper()
	types := map[string]*sourceType{}
	of := func(pkg, name string) *sourceType {
		key := pkg + "." + name
		if types[key] == nil {
			types[key] = &sourceType{pkg: pkg, name: name}
		}
		return types[key]
	}
	for file := range sourceImports(t) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		pkg := path.Dir(file)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if name := receiver(n); name != "" {
					of(pkg, name).methods++
				}
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					typ := of(pkg, n.Name.Name)
					typ.file = file
					typ.fields, typ.data = structFields(s)
				}
			}
			return true
		})
	}
	return types
}

// receiver is the name of the type that a method belongs to; empty: a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	expr := f.Recv.List[0].Type
	for {
		switch x := expr.(type) {
		case *ast.StarExpr:
			expr = x.X
		case *ast.IndexExpr:
			expr = x.X
		case *ast.IndexListExpr:
			expr = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// structFields counts the fields and reports whether they have tags.
func structFields(s *ast.StructType) (n int, tagged bool) {
	for _, f := range s.Fields.List {
		n += max(1, len(f.Names))
		tagged = tagged || f.Tag != nil
	}
	return n, tagged
}

func TestNoPackageHasTooManyFiles(t *testing.T) {
	files := map[string]int{}
	for file := range sourceImports(t) {
		files[path.Dir(file)]++
	}
	for pkg, n := range files {
		if n > maxFiles {
			t.Errorf("%s has %d files, at most %d", pkg, n, maxFiles)
		}
	}
}

func TestLinesAreShort(t *testing.T) {
	err := filepath.WalkDir(".", func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && skipDir(name, d.Name()) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".pb.go") { // those are generated
			checkColumns(t, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkColumns(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	free := literalLines(t, name, data)
	for n, line := range strings.Split(string(data), "\n") {
		if columns := utf8.RuneCountInString(line); columns > maxColumns && !free[n+1] {
			t.Errorf("%s:%d: %d columns, at most %d", name, n+1, columns, maxColumns)
		}
	}
}

// literalLines are the lines that are not broken: those of raw strings and, in
// tests, those with a long string.
func literalLines(t *testing.T, name string, data []byte) map[int]bool {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, data, 0)
	if err != nil {
		t.Fatal(err)
	}
	test := strings.HasSuffix(name, "_test.go")
	lines := map[int]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && (l.Value[0] == '`' || test && len(l.Value) > maxColumns/3) {
			for line := files.Position(l.Pos()).Line; line <= files.Position(l.End()).Line; line++ {
				lines[line] = true
			}
		}
		return true
	})
	return lines
}

func TestEveryOwnerIsImported(t *testing.T) {
	imported := map[string]bool{}
	for file, imports := range sourceImports(t) {
		for _, i := range imports {
			for library, allowed := range owners {
				if (i == library || strings.HasPrefix(i, library+"/")) && contains(allowed, path.Dir(file)) {
					imported[library+" "+path.Dir(file)] = true
				}
			}
		}
	}
	for library, allowed := range owners {
		for _, pkg := range allowed {
			if !imported[library+" "+pkg] {
				t.Errorf("%s does not import %s, of which the table makes it an owner", pkg, library)
			}
		}
	}
	for pkg := range ranks {
		if _, err := os.Stat(path.Join(".", pkg)); err != nil {
			t.Errorf("the table has a package that is not there: %v", err)
		}
	}
}
