// Package syntax loads policy files.
//
// A policy is a YAML file and the files that it extends. [Load] parses them
// strictly and returns a [policy.Policy]:
//
//	p, err := syntax.Load(policy.Source{Name: "policy.yaml", Data: data}, syntax.Options{
//		Vars:     map[string]string{"WORKSPACE": "/work"},
//		ReadFile: os.ReadFile, // for extends
//	})
//	var problems policy.Problems
//	if errors.As(err, &problems) {
//		// each with Pos, Severity, Message and Hint
//	}
//
// On an error, Load returns every problem at once. [Lint] returns warnings
// about a loaded policy. [Schema] returns a JSON Schema for editors.
//
// Tables of keys define the language (document.go and keys_*.go). The parser
// and the schema both use them. Load calls the tables and then merges the
// documents (merge.go). The tables call the readers of values (read.go,
// expand.go), which use internal/strictyaml.
//
// The package makes no system calls. The caller reads files in
// [Options.ReadFile].
package syntax
