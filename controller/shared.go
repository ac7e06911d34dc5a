package controller

// Shared is what the runs of a batch have in common, so that it is found out once. Safe for
// concurrent use.
type Shared struct{}

// NewShared returns a value for the runs of one batch.
func NewShared() *Shared { return &Shared{} }
