package main

import (
	"testing"

	"agentsh/internal/testenv"
)

// TestCommandsFollowTheConventions: each command that does something has an
// example, and a letter is the same flag in both programs.
func TestCommandsFollowTheConventions(t *testing.T) { testenv.Conventions(t, newRoot()) }
