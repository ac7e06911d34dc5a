package agentsh

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// Only a call that is implemented in assembly keeps an object at its place whose address it
// gets as a uintptr. Elsewhere the stack of the goroutine can move first, and the kernel then
// writes to memory that is free. See rule 4 of unsafe.Pointer.
func TestAddressesGoToSystemCallsDirectly(t *testing.T) {
	keeps := []string{"Syscall", "Syscall6", "RawSyscall", "RawSyscall6"}
	found := 0
	for file := range sourceImports(t) {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || calledName(call) == "uint64" { // a number for another process
				return true
			}
			for _, arg := range call.Args {
				if conversion, ok := arg.(*ast.CallExpr); ok && isAddress(conversion) {
					found++
					if !slices.Contains(keeps, calledName(call)) {
						t.Errorf("%s: %s gets an address as a uintptr: make the system call here", set.Position(arg.Pos()), calledName(call))
					}
				}
			}
			return true
		})
	}
	if found == 0 {
		t.Error("no address was found")
	}
}

// isAddress reports uintptr(unsafe.Pointer(x)).
func isAddress(c *ast.CallExpr) bool {
	if calledName(c) != "uintptr" || len(c.Args) != 1 {
		return false
	}
	inner, ok := c.Args[0].(*ast.CallExpr)
	return ok && calledName(inner) == "Pointer"
}

func calledName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
