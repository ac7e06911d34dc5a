// Package syntax reads policy files.
//
// A policy is a YAML file and the files it extends. [Load] reads them strictly and
// returns a [policy.Policy], or every problem at once, each with file, line and
// column. [Lint] returns warnings about what loads but is probably not meant.
// [Schema] returns a JSON Schema for editors.
//
// The language is written down in tables of keys (document.go and keys_*.go).
// Reading and the schema both use them. Load calls the tables and then merges the
// documents (merge.go). The tables call the readers of values (read.go, expand.go),
// which use internal/strictyaml.
//
// The package makes no system call: the caller reads files, through
// [Options.ReadFile].
package syntax
