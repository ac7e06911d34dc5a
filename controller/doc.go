// Package controller runs an agent from a harness: it checks everything that
// can be checked, creates a sandbox, brings the repository and the agent in,
// runs it, takes the results out and deletes the sandbox, whatever happens.
//
// [Run] is the whole of it; the steps are the functions in steps.go, in the
// order of the table there. What a killed controller leaves is found by
// [Collect] through the run records.
package controller
