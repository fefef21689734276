// Ask for one tool call through a JavaScript client, and print the calls it understood: node tool_calls.mjs CLIENT.
// HEARTH_API_BASE, HEARTH_API_KEY and HEARTH_MODEL say where.
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const { HEARTH_API_BASE: baseURL, HEARTH_API_KEY: apiKey, HEARTH_MODEL: model } = process.env;
const fresh = { "cache-control": "no-cache" }; // the engine answers, never the cache
const messages = [{ role: "user", content: "Hello there" }];
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};

const openai = new OpenAI({ baseURL, apiKey, maxRetries: 0, defaultHeaders: fresh });
const anthropic = new Anthropic({
  baseURL: baseURL.replace(/\/v1$/, ""),
  apiKey,
  maxRetries: 0,
  defaultHeaders: fresh,
});
const provider = createOpenAICompatible({ name: "hearth", baseURL, apiKey, headers: fresh });

const chat = {
  model,
  messages,
  max_tokens: 500,
  temperature: 0,
  tools: [{ type: "function", function: { name: "weather", parameters } }],
  tool_choice: "required",
};
const response = {
  model,
  input: "Hello there",
  max_output_tokens: 500,
  temperature: 0,
  tools: [{ type: "function", name: "weather", parameters }],
  tool_choice: "required",
};
const message = {
  model,
  messages,
  max_tokens: 500,
  temperature: 0,
  tools: [{ name: "weather", input_schema: parameters }],
  tool_choice: { type: "any" },
};
const generation = {
  model: provider(model),
  prompt: "Hello there",
  maxOutputTokens: 500,
  temperature: 0,
  maxRetries: 0,
  toolChoice: "required",
  tools: { weather: tool({ inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }) }) },
};

const ofChat = (completion) =>
  completion.choices[0].message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
const ofResponse = (whole) =>
  whole.output
    .filter((item) => item.type === "function_call")
    .map((item) => [item.name, JSON.parse(item.arguments)]);
const ofMessage = (whole) =>
  whole.content.filter((block) => block.type === "tool_use").map((block) => [block.name, block.input]);
const ofGeneration = (calls) => calls.map((call) => [call.toolName, call.input]);

const clients = {
  "chat": async () => ofChat(await openai.chat.completions.create(chat)),
  "chat-streamed": async () => ofChat(await openai.chat.completions.stream(chat).finalChatCompletion()),
  "responses": async () => ofResponse(await openai.responses.create(response)),
  "responses-streamed": async () => ofResponse(await openai.responses.stream(response).finalResponse()),
  "messages": async () => ofMessage(await anthropic.messages.create(message)),
  "messages-streamed": async () => ofMessage(await anthropic.messages.stream(message).finalMessage()),
  "ai-sdk": async () => ofGeneration((await generateText(generation)).toolCalls),
  "ai-sdk-streamed": async () => ofGeneration(await streamText(generation).toolCalls),
};

console.log(JSON.stringify(await clients[process.argv[2]]()));
