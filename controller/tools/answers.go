package tools

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// private keeps results out of caches that others share.
func private(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" }

// answers lists the outputs that are kept, and has refused arguments answered in words of the tool.
func answers(t *Toolbox) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "resources/list" {
				return &mcp.ListResourcesResult{Resources: t.commands.resources()}, nil
			}
			res, err := next(ctx, method, req)
			if one, ok := res.(*mcp.CallToolResult); ok && err == nil && one.IsError {
				explain(t.arguments, req, one)
			}
			return res, err
		}
	}
}

// badArguments begins what the SDK says of arguments that do not fit the schema of a tool.
const badArguments = `validating "arguments": `

// explain names the arguments that a tool has, where those of a call do not fit.
func explain(arguments map[string][]string, req mcp.Request, res *mcp.CallToolResult) {
	params, ok := req.GetParams().(*mcp.CallToolParamsRaw)
	if !ok || len(res.Content) != 1 {
		return
	}
	said, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		return
	}
	if why, ok := strings.CutPrefix(said.Text, badArguments); ok {
		said.Text = fmt.Sprintf("the arguments do not fit: %s; %s has %s",
			strings.ReplaceAll(why, "validating root: ", ""), params.Name, cmp.Or(strings.Join(arguments[params.Name], ", "), "no arguments"))
	}
}

// resources are the outputs that are kept, newest first.
func (c *commands) resources() []*mcp.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*command, 0, len(c.of))
	for _, one := range c.of {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *command) int { return b.number - a.number })
	list := []*mcp.Resource{}
	for _, one := range all {
		total, kept := one.output.size()
		if kept == 0 {
			continue
		}
		list = append(list, &mcp.Resource{
			URI: outputURI + one.id, Name: "output of " + one.id, Title: one.shown, MIMEType: "text/plain", Size: total,
		})
	}
	return list
}
