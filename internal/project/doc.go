// Package project finds what a command line does not name: the project around a
// directory, the policy of its commands, and the programs that the user has installed
// in the own home.
//
// root.go finds the project, find.go the policy. trust.go records which policies of
// projects the user trusts. tools.go finds the programs.
package project
