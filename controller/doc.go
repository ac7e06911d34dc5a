// Package controller runs an agent from a harness. It checks everything that
// can be checked, creates a sandbox, sends the repository and the agent into it
// and runs the agent. It then extracts the agent's work, and always deletes the
// sandbox.
//
// [Run] is the entry. run.go drives the table of steps in steps.go. A step
// passes values (the plan, the program, the checkout, the box, the results) to
// functions and small types of the other files, and stores what they return.
// The other files never call back into run.go or steps.go. [Collect] cleans up
// after killed controllers.
//
// controller/git, controller/record and controller/attach do not depend on
// steps. They contain the operator's repository, the directories of runs, and
// the operators' connections to a sandbox.
package controller
