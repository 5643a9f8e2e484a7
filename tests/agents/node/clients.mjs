// The agent of clients.py with Vercel's AI SDK, in both APIs: node clients.mjs CLIENT.

import { createOpenAI } from "@ai-sdk/openai";
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

const tools = Object.fromEntries(
  Object.keys(functions).map((name) => [name, tool({ inputSchema: schemas[name], execute: functions[name] })]),
);
const provider = createOpenAI({ baseURL, apiKey: "any" });
const model = process.argv[2] === "vercel" ? provider("policy") : provider.chat("policy");
await generateText({ model, tools, prompt: question, stopWhen: hasToolCall("submit") });
console.log(JSON.stringify({ reward: submitted === "73" }));
