// The hooks of the run. A hook that refuses, fails or cannot be started ends the
// call with an error, which the model reads.
import { spawnSync } from "node:child_process";

function judge(command, call) {
  const run = spawnSync(command[0], command.slice(1), {
    input: JSON.stringify(call),
    encoding: "utf8",
    maxBuffer: 256 << 20,
    timeout: 60000,
  });
  if (run.status !== 0) {
    throw new Error((run.stderr || "").trim() || "agentsh: the hook did not run: " + (run.error?.message ?? run.signal));
  }
  return run.stdout ? JSON.parse(run.stdout) : {};
}

// What a call that failed answered is known only when its messages go to the model.
const errors = new Map();

function failed(part) {
  if (!errors.has(part.callID)) {
    let text;
    try {
      const answer = judge(commands.after, {
        hook_event_name: "PostToolUse", tool_name: part.tool, tool_input: part.state.input ?? {}, tool_response: { output: part.state.error },
      });
      text = answer.output?.output ?? part.state.error;
      if (answer.notes) text += "\n\n" + answer.notes;
    } catch (error) {
      text = error.message;
    }
    errors.set(part.callID, text);
  }
  part.state.error = errors.get(part.callID);
}

export const Hooks = async () => ({
  "tool.execute.before": async (input, output) => {
    if (commands.before) {
      judge(commands.before, { hook_event_name: "PreToolUse", tool_name: input.tool, tool_input: output.args ?? {} });
    }
  },
  "tool.execute.after": async (input, output) => {
    if (!commands.after || !output) return;
    // Tools of OpenCode answer with output, those of servers with content.
    const answered = { output: output.output, title: output.title, content: output.content, metadata: output.metadata };
    const answer = judge(commands.after, {
      hook_event_name: "PostToolUse", tool_name: input.tool, tool_input: input.args ?? {}, tool_response: answered,
    });
    if (answer.output) Object.assign(output, answer.output);
    if (!answer.notes) return;
    if (Array.isArray(output.content)) output.content.push({ type: "text", text: answer.notes });
    else output.output = (output.output ?? "") + "\n\n" + answer.notes;
  },
  "experimental.chat.messages.transform": async (_, output) => {
    if (!commands.after) return;
    for (const message of output.messages) {
      for (const part of message.parts) {
        if (part.type === "tool" && part.state.status === "error" && typeof part.state.error === "string") failed(part);
      }
    }
  },
});
