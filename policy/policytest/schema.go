package policytest

import _ "embed"

// Schema is the JSON Schema of test files, for editors. A test holds it against
// the reader.
//
//go:embed tests.schema.json
var Schema []byte
