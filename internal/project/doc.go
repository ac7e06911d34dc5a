// Package project finds what a command line does not name: the project around a
// directory, the policy of its commands, and what the user has in the own home: programs,
// and the identity for git.
//
// root.go finds the project, find.go the policy; named.go knows the policies
// of the packages by name. trust.go records which policies of
// projects the user trusts. tools.go finds the programs, identity.go the user's name and
// email for git.
package project
