// The agent of clients.py with LangChain.js and with Vercel's AI SDK: node clients.mjs CLIENT.

import { createOpenAI } from "@ai-sdk/openai";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool as langchainTool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, hasToolCall, tool } from "ai";
import { z } from "zod";

const question = "Look until you see the code. Then submit it.";
const baseURL = process.env.OPENAI_BASE_URL;
let submitted = "";
const schemas = { look: z.object({}), submit: z.object({ code: z.string() }) };
const functions = {
  look: async () => "nothing yet",
  submit: async ({ code }) => ((submitted = code), "done"),
};

const clients = {
  async langchain_js() {
    const tools = Object.keys(functions).map((name) => langchainTool(functions[name], { name, schema: schemas[name] }));
    const model = new ChatOpenAI({ model: "policy", apiKey: "any", configuration: { baseURL } }).bindTools(tools);
    const messages = [new HumanMessage(question)];
    while (!submitted) {
      const said = await model.invoke(messages);
      messages.push(said);
      for (const call of said.tool_calls) {
        const content = await functions[call.name](call.args);
        messages.push(new ToolMessage({ content, tool_call_id: call.id }));
      }
    }
  },
  async vercel() {
    const tools = Object.fromEntries(
      Object.keys(functions).map((name) => [name, tool({ inputSchema: schemas[name], execute: functions[name] })]),
    );
    const model = createOpenAI({ baseURL, apiKey: "any" }).chat("policy");
    await generateText({ model, tools, prompt: question, stopWhen: hasToolCall("submit") });
  },
};

await clients[process.argv[2]]();
console.log(JSON.stringify({ reward: submitted === "73" }));
