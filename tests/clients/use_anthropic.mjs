// Anthropic's package for Node: its plain calls and its helpers.

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";

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

const client = new Anthropic({ baseURL: server.url, apiKey: "none", maxRetries: 0, timeout: 60000 });
const { model } = server;
const plain = { model, temperature: 0, max_tokens: 400, thinking: { type: "disabled" } };
const sum = { ...plain, messages: [{ role: "user", content: SUM_QUESTION }] };
const question = { role: "user", content: WEATHER_QUESTION };
const tools = [
  {
    name: "get_weather",
    description: "Get the weather",
    input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];

async function message() {
  const reply = await client.messages.create(sum);
  assert.deepEqual(reply.content, [{ type: "text", text: SUM_ANSWER }]);
  assert.equal(reply.stop_reason, "end_turn");
  assert.ok(reply.usage.output_tokens > 0);
}

async function stream() {
  const types = [];
  for await (const event of await client.messages.create({ ...sum, stream: true })) types.push(event.type);
  assert.equal(types[0], "message_start");
  assert.deepEqual(types.slice(-3), ["content_block_stop", "message_delta", "message_stop"]);
  assert.equal(await client.messages.stream(sum).finalText(), SUM_ANSWER);
}

async function toolLoop() {
  for (const ask of [
    (body) => client.messages.create(body),
    (body) => client.messages.stream(body).finalMessage(),
  ]) {
    const called = await ask({ ...plain, tools, messages: [question] });
    assert.equal(called.stop_reason, "tool_use");
    const call = called.content.at(-1);
    assert.deepEqual([call.name, call.input], ["get_weather", { city: "Paris" }]);
    const result = { type: "tool_result", tool_use_id: call.id, content: JSON.stringify(WEATHER_RESULT) };
    const { role, content } = called;
    const messages = [question, { role, content }, { role: "user", content: [result] }];
    const answer = await ask({ ...plain, tools, messages });
    assert.ok(answer.content.at(-1).text.includes("21"));
  }
}

async function thinking() {
  const body = { ...sum, max_tokens: 1500, thinking: { type: "enabled", budget_tokens: 1024 } };
  const told = await client.messages.stream(body).finalMessage();
  assert.deepEqual(told.content.map((block) => block.type), ["thinking", "text"]);
  assert.deepEqual(told.content, (await client.messages.create(body)).content);
}

async function tokensAreCounted() {
  const { messages } = sum;
  const counted = await client.messages.countTokens({ model, messages, thinking: plain.thinking });
  const { usage } = await client.messages.create(sum);
  assert.equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
}

async function aCancelledStreamFreesItsRequest() {
  const before = await aborted();
  const long = { ...sum, max_tokens: 1500, thinking: { type: "enabled", budget_tokens: 1024 } };
  const streamed = client.messages.stream(long);
  await new Promise((resolve) => streamed.once("streamEvent", resolve));
  streamed.abort();
  await streamed.done().catch(() => {});
  await waitUntil(async () => (await aborted()) === before + 1);
}

async function errorsAreThePackagesOwn() {
  const absent = await refused(Anthropic.NotFoundError, () => client.messages.create({ ...sum, model: "absent" }));
  assert.equal(absent.error.error.type, "not_found_error");
  assert.equal(absent.requestID, absent.error.request_id);
  const wrong = await refused(Anthropic.BadRequestError, () => client.messages.create({ ...sum, messages: [] }));
  assert.ok(wrong.message.includes("messages: is empty"));
}

await run(
  message,
  stream,
  toolLoop,
  thinking,
  tokensAreCounted,
  aCancelledStreamFreesItsRequest,
  errorsAreThePackagesOwn,
);
