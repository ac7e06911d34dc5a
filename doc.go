// Package agentsh is the map of the project; doc is written with the walks.
package agentsh
