// The openai package for Node: its plain calls and its helpers.

import assert from "node:assert/strict";

import OpenAI from "openai";
import { zodFunction } from "openai/helpers/zod";
import { z } from "zod";

import {
  SUM_ANSWER,
  SUM_QUESTION,
  WEATHER_QUESTION,
  WEATHER_RESULT,
  aborted,
  refused,
  run,
  server,
  waitUntil,
} from "./scenarios.mjs";

const client = new OpenAI({ baseURL: server.baseURL, apiKey: "none", maxRetries: 0, timeout: 60000 });
const { model } = server;
const sum = { model, temperature: 0, messages: [{ role: "user", content: SUM_QUESTION }] };
const question = { role: "user", content: WEATHER_QUESTION };
const City = z.object({ city: z.string() });
const weatherTool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
// Strict, with a function that runs the call and one that parses its arguments.
const strictTool = (call) =>
  zodFunction({ name: "get_weather", description: "Get the weather", parameters: City, function: call });

async function modelsAreListed() {
  const listed = [];
  for await (const one of client.models.list()) listed.push(one.id);
  assert.deepEqual(listed, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
}

async function chat() {
  const reply = await client.chat.completions.create(sum);
  assert.equal(reply.choices[0].message.content, SUM_ANSWER);
  assert.equal(reply.choices[0].finish_reason, "stop");
  const { prompt_tokens, completion_tokens, total_tokens } = reply.usage;
  assert.ok(prompt_tokens > 0 && completion_tokens > 0);
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
}

async function streamWithUsage() {
  const options = { include_usage: true, include_obfuscation: false };
  const chunks = [];
  for await (const chunk of await client.chat.completions.create({ ...sum, stream: true, stream_options: options })) {
    chunks.push(chunk);
  }
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), SUM_ANSWER);
  assert.ok(chunks.at(-1).usage.completion_tokens > 0);
  assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage == null));
}

async function toolLoop() {
  const options = { model, temperature: 0, tools: [weatherTool] };
  const called = (await client.chat.completions.create({ ...options, messages: [question] })).choices[0];
  assert.equal(called.finish_reason, "tool_calls");
  const [call] = called.message.tool_calls;
  assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ["get_weather", { city: "Paris" }]);
  const result = { role: "tool", tool_call_id: call.id, content: JSON.stringify(WEATHER_RESULT) };
  const messages = [question, called.message, result];
  const answer = (await client.chat.completions.create({ ...options, messages })).choices[0];
  assert.match(answer.message.content, /21/);
}

// The helper runs the tool, and sends back the message that it parsed, with `parsed` and `parsed_arguments`.
async function toolLoopOfRunTools() {
  const asked = [];
  const tools = [strictTool((given) => (asked.push(given), JSON.stringify(WEATHER_RESULT)))];
  assert.equal(tools[0].function.strict, true);
  const runner = client.chat.completions.runTools({ model, temperature: 0, tools, messages: [question] });
  assert.match(await runner.finalContent(), /21/);
  assert.deepEqual(asked, [{ city: "Paris" }]);
}

async function toolLoopOfRunToolsInAStream() {
  const asked = [];
  const tools = [strictTool((given) => (asked.push(given), JSON.stringify(WEATHER_RESULT)))];
  const runner = client.chat.completions.runTools({ model, temperature: 0, tools, messages: [question], stream: true });
  assert.match(await runner.finalContent(), /21/);
  assert.deepEqual(asked, [{ city: "Paris" }]);
}

async function toolLoopOfParse() {
  const options = { model, temperature: 0, tools: [strictTool()] };
  const { message } = (await client.chat.completions.parse({ ...options, messages: [question] })).choices[0];
  const [call] = message.tool_calls;
  assert.deepEqual(call.function.parsed_arguments, { city: "Paris" });
  const result = { role: "tool", tool_call_id: call.id, content: JSON.stringify(WEATHER_RESULT) };
  const answer = await client.chat.completions.parse({ ...options, messages: [question, message, result] });
  assert.match(answer.choices[0].message.content, /21/);
}

async function toolCallOfTheStreamHelper() {
  const stream = client.chat.completions.stream({ model, temperature: 0, tools: [strictTool()], messages: [question] });
  const { tool_calls } = (await stream.finalChatCompletion()).choices[0].message;
  assert.deepEqual(tool_calls[0].function.parsed_arguments, { city: "Paris" });
}

async function logProbabilities() {
  const [choice] = (await client.chat.completions.create({ ...sum, logprobs: true, top_logprobs: 2 })).choices;
  const tokens = choice.logprobs.content;
  const text = Buffer.concat(tokens.map((token) => Buffer.from(token.bytes))).toString();
  assert.ok(text.startsWith(SUM_ANSWER));
  for (const token of tokens) {
    assert.equal(token.top_logprobs.length, 2);
    assert.equal(token.top_logprobs[0].token, token.token);
  }
}

async function completions() {
  const options = { model, prompt: "Hello there", max_tokens: 4, temperature: 0 };
  const whole = await client.completions.create({ ...options, echo: true, logprobs: 1 });
  assert.ok(whole.choices[0].text.startsWith("Hello there"));
  assert.equal(whole.choices[0].logprobs.tokens.join(""), whole.choices[0].text);
  let text = "";
  for await (const chunk of await client.completions.create({ ...options, stream: true })) {
    text += chunk.choices[0].text;
  }
  assert.equal(`Hello there${text}`, whole.choices[0].text);
}

async function fieldsOfTheSchemaWithoutEffect() {
  const reply = await client.chat.completions.create({
    ...sum, user: "me", store: false, service_tier: "auto", metadata: { a: "b" }, safety_identifier: "me",
    prompt_cache_key: "key", prompt_cache_retention: "24h", verbosity: "low", reasoning_effort: "none",
  });
  assert.equal(reply.choices[0].message.content, SUM_ANSWER);
}

async function cancelledStreamFreesItsRequest() {
  const before = await aborted();
  const stream = await client.chat.completions.create({ ...sum, stream: true, max_tokens: 1900, ignore_eos: true });
  for await (const _ of stream) {
    stream.controller.abort();
  }
  await waitUntil(async () => (await aborted()) === before + 1);
}

async function manyAtOnce() {
  const replies = await Promise.all(Array.from({ length: 8 }, () => client.chat.completions.create(sum)));
  assert.deepEqual([...new Set(replies.map((reply) => reply.choices[0].message.content))], [SUM_ANSWER]);
}

async function errorsAreThePackagesOwn() {
  const ask = (fields) => () => client.chat.completions.create({ ...sum, ...fields });
  assert.equal((await refused(OpenAI.NotFoundError, ask({ model: "absent" }))).param, "model");
  assert.equal((await refused(OpenAI.BadRequestError, ask({ messages: [] }))).param, "messages");
  assert.equal((await refused(OpenAI.BadRequestError, ask({ temperature: -1 }))).param, "temperature");
}

async function responses() {
  const tools = [{ type: "function", ...weatherTool.function }];
  const first = await client.responses.create({ model, temperature: 0, tools, input: [question] });
  const [call] = first.output;
  assert.deepEqual([call.name, JSON.parse(call.arguments)], ["get_weather", { city: "Paris" }]);
  const input = [{ type: "function_call_output", call_id: call.call_id, output: JSON.stringify(WEATHER_RESULT) }];
  const stream = client.responses.stream({ model, temperature: 0, tools, input, previous_response_id: first.id });
  assert.match((await stream.finalResponse()).output_text, /21/);
  await client.responses.delete(first.id);
  await refused(OpenAI.NotFoundError, () => client.responses.retrieve(first.id));
}

async function forcedCalls() {
  const named = { type: "function", function: { name: "get_weather" } };
  for (const [tool_choice, reason] of [["required", "tool_calls"], [named, "stop"]]) {
    const forced = { tools: [strictTool()], tool_choice, parallel_tool_calls: false };
    const [choice] = (await client.chat.completions.parse({ ...sum, ...forced })).choices;
    assert.equal(choice.finish_reason, reason);
    assert.equal(typeof choice.message.tool_calls[0].function.parsed_arguments.city, "string");
  }
}

await run(
  modelsAreListed,
  chat,
  streamWithUsage,
  toolLoop,
  toolLoopOfRunTools,
  toolLoopOfRunToolsInAStream,
  toolLoopOfParse,
  toolCallOfTheStreamHelper,
  logProbabilities,
  completions,
  fieldsOfTheSchemaWithoutEffect,
  cancelledStreamFreesItsRequest,
  manyAtOnce,
  errorsAreThePackagesOwn,
  responses,
  forcedCalls,
);
