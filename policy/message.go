package policy

import (
	"strconv"
	"strings"
)

// TemplateFields lists the fields that a message may use. None of them can
// contain a secret. Args is only the number of arguments.
var TemplateFields = []string{"Path", "Command", "Args", "Operation", "Domain", "RemoteAddr", "RemotePort", "Signal", "Target", "Rule"}

// Template is a parsed message: text, field, text, field, ...
type Template []string

// render returns the message with its fields filled in for one request.
func (m Template) render(r Request, rule string) string {
	var b strings.Builder
	for i, part := range m {
		if i%2 == 1 {
			part = shown(messageField(part, r, rule))
		}
		b.WriteString(part)
	}
	return b.String()
}

func messageField(name string, r Request, rule string) string {
	if name == "Rule" {
		return rule
	}
	switch r := r.(type) {
	case *CommandRequest:
		switch name {
		case "Path", "Command":
			return r.Called
		case "Args":
			return strconv.Itoa(max(len(r.Argv)-1, 0)) + " arguments"
		}
	case *FileRequest:
		switch name {
		case "Path":
			return r.Path
		case "Operation":
			return r.Op.String()
		}
	case *NetworkRequest:
		return networkField(name, r)
	case *UnixSocketRequest:
		switch name {
		case "Path":
			return r.Path
		case "Operation":
			return r.Op
		}
	case *SignalRequest:
		switch name {
		case "Signal":
			return signalName(r.Signal)
		case "Target":
			return r.Target
		case "Command":
			return r.Name
		}
	}
	return "unknown"
}

func networkField(name string, r *NetworkRequest) string {
	switch name {
	case "Domain":
		return r.Domain
	case "RemoteAddr":
		if r.Addr.IsValid() {
			return r.Addr.String()
		}
		return r.Domain
	case "RemotePort":
		return strconv.Itoa(r.Port)
	case "Path":
		return r.Path
	case "Command":
		return r.Binary
	case "Operation":
		return r.Method
	}
	return "unknown"
}
