// An agent in JavaScript: a small cabinet, and the openai package's own loop of function calls, streamed.

import OpenAI from "openai";

const { start, notes } = JSON.parse(process.env.EH_TASK);
let open = null;

const functions = {
  open: ({ argument: drawer }) => (open === null ? ((open = drawer), "ok") : `error open ${open}`),
  read: () => (open === null ? "error closed" : (notes[open] ?? "empty")),
  close: () => (open === null ? "error closed" : ((open = null), "ok")),
  submit: ({ argument: code }) => {
    const right = Object.values(notes).includes(`code ${[...String(code)].join(" ")}`);
    console.log(JSON.stringify({ reward: right }));
    process.exit();
  },
};

const tools = Object.entries(functions).map(([name, run]) => ({
  type: "function",
  function: {
    name,
    function: run,
    parse: JSON.parse,
    parameters: {
      type: "object",
      properties: { argument: { type: "string" } },
    },
  },
}));
const messages = [{ role: "user", content: `start ${start}` }];

const client = new OpenAI(); // OPENAI_BASE_URL and OPENAI_API_KEY say where the model is
await client.chat.completions.runTools({ model: "policy", stream: true, messages, tools }).done();
console.log(JSON.stringify({ reward: false })); // no code was submitted
