package policy

var wrappers = map[string]bool{"env": true}

func (p *Policy) wraps(pr *Program, _ []string) bool {
	return p.transparent[base(pr.Path)] || p.transparent[base(pr.Called)]
}

func (p *Policy) payloads(q *CommandRequest) (Decision, reason) {
	return Decision{Effect: Allow}, reason{}
}
