// The AI SDK, by its two providers for OpenAI's API: `openai-compatible`, and `openai` with responses and with chats.

import assert from "node:assert/strict";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, ToolLoopAgent, generateText, stepCountIs, streamText, tool } from "ai";
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

const { baseURL, model: name } = server;
const compatible = createOpenAICompatible({ name: "jaxinfer", baseURL, apiKey: "none", includeUsage: true });
const endless = createOpenAICompatible({
  name: "jaxinfer", baseURL, apiKey: "none", transformRequestBody: (body) => ({ ...body, ignore_eos: true }),
});
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = { compatible: compatible(name), openai: openai.chat(name), responses: openai(name) };
const plain = { maxRetries: 0, temperature: 0, timeout: 60000 };

function weather(asked) {
  return tool({
    description: "Get the weather",
    inputSchema: z.object({ city: z.string() }),
    execute: async (given) => (asked.push(given), WEATHER_RESULT),
  });
}

async function all(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return pieces;
}

async function generate() {
  for (const model of Object.values(models)) {
    const { text, usage, finishReason } = await generateText({ ...plain, model, prompt: SUM_QUESTION });
    assert.equal(text, SUM_ANSWER);
    assert.equal(finishReason, "stop");
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
    assert.equal(usage.totalTokens, usage.inputTokens + usage.outputTokens);
  }
}

async function streamWithUsage() {
  for (const model of Object.values(models)) {
    const result = streamText({ ...plain, model, prompt: SUM_QUESTION });
    const pieces = await all(result.textStream);
    assert.ok(pieces.length > 1);
    assert.equal(pieces.join(""), SUM_ANSWER);
    assert.ok((await result.usage).outputTokens > 0);
  }
}

async function toolLoop() {
  for (const model of Object.values(models)) {
    const asked = [];
    const { text, steps } = await generateText({
      ...plain, model, prompt: WEATHER_QUESTION, tools: { get_weather: weather(asked) }, stopWhen: stepCountIs(3),
    });
    assert.deepEqual(asked, [{ city: "Paris" }]);
    assert.equal(steps.length, 2);
    assert.match(text, /21/);
  }
}

async function toolLoopOfAStream() {
  for (const model of Object.values(models)) {
    const asked = [];
    const result = streamText({
      ...plain, model, prompt: WEATHER_QUESTION, tools: { get_weather: weather(asked) }, stopWhen: stepCountIs(3),
    });
    assert.match((await all(result.textStream)).join(""), /21/);
    assert.deepEqual(asked, [{ city: "Paris" }]);
  }
}

async function toolLoopOfAnAgentWithStrictTools() {
  const asked = [];
  const strict = { ...weather(asked), strict: true };
  for (const model of Object.values(models)) {
    const agent = new ToolLoopAgent({ model, temperature: 0, maxRetries: 0, tools: { get_weather: strict } });
    const { text, response } = await agent.generate({ prompt: WEATHER_QUESTION });
    assert.match(text, /21/);
    const messages = [{ role: "user", content: WEATHER_QUESTION }, ...response.messages];
    const again = await agent.generate({ messages: [...messages, { role: "user", content: SUM_QUESTION }] });
    assert.ok(again.text);
  }
  assert.deepEqual(asked, Object.keys(models).map(() => ({ city: "Paris" })));
}

async function thinkingIsApartAndGoesBack() {
  const thinking = createOpenAICompatible({
    name: "jaxinfer", baseURL, apiKey: "none",
    transformRequestBody: (body) => ({ ...body, chat_template_kwargs: { enable_thinking: true } }),
  });
  const asked = { role: "user", content: SUM_QUESTION };
  const model = thinking(name);
  const first = await generateText({ ...plain, model, messages: [asked] });
  assert.ok(first.reasoningText);
  assert.match(first.text, /42/);
  const messages = [asked, ...first.response.messages, { role: "user", content: "What is 3 plus 4?" }];
  assert.match((await generateText({ ...plain, model, messages })).text, /7/);
}

async function reasoningEffort() {
  const providers = { compatible: "jaxinfer", openai: "openai", responses: "openai" };
  for (const [which, key] of Object.entries(providers)) {
    const model = models[which];
    const options = { ...plain, model, prompt: SUM_QUESTION };
    const { text } = await generateText({ ...options, providerOptions: { [key]: { reasoningEffort: "low" } } });
    assert.match(text, /42/);
  }
}

async function optionsOfTheProviders() {
  const shared = { ...plain, prompt: SUM_QUESTION };
  // The first provider does not know `parallelToolCalls`, and puts it into the request under that name.
  const named = { user: "me", textVerbosity: "low", parallelToolCalls: false };
  const first = await generateText({ ...shared, model: models.compatible, providerOptions: { jaxinfer: named } });
  assert.equal(first.text, SUM_ANSWER);
  const own = { ...named, store: false, metadata: { a: "b" }, serviceTier: "auto", promptCacheKey: "key", logprobs: 2 };
  const second = await generateText({ ...shared, model: models.openai, providerOptions: { openai: own } });
  assert.equal(second.text, SUM_ANSWER);
  const tokens = second.providerMetadata.openai.logprobs;
  assert.ok(tokens.map((token) => token.token).join("").startsWith(SUM_ANSWER));
}

async function completions() {
  const { text } = await generateText({
    ...plain, model: compatible.completionModel(name), prompt: "Hello there", maxOutputTokens: 4,
  });
  assert.ok(text);
}

async function cancelledStreamFreesItsRequest() {
  const before = await aborted();
  const stop = new AbortController();
  const result = streamText({
    ...plain, model: endless(name), prompt: SUM_QUESTION, maxOutputTokens: 1900, abortSignal: stop.signal,
  });
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") stop.abort();
  }
  await waitUntil(async () => (await aborted()) === before + 1);
}

async function errorsAreOfTheCall() {
  for (const absent of [compatible("absent"), openai.chat("absent"), openai("absent")]) {
    const error = await refused(APICallError, () => generateText({ ...plain, model: absent, prompt: "hi" }));
    assert.deepEqual([error.statusCode, error.data.error.param, error.isRetryable], [404, "model", false]);
  }
  for (const model of Object.values(models)) {
    const hot = { ...plain, model, temperature: 1000, prompt: "hi" };
    const error = await refused(APICallError, () => generateText(hot));
    assert.deepEqual([error.statusCode, error.data.error.param], [400, "temperature"]);
    assert.match(error.message, /temperature/);
  }
}

async function forcedCalls() {
  for (const model of Object.values(models)) {
    for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
      const asked = [];
      const tools = { get_weather: weather(asked) };
      await generateText({ ...plain, model, tools, toolChoice, prompt: WEATHER_QUESTION });
      assert.deepEqual(asked[0], { city: "Paris" });
    }
  }
}

await run(
  generate,
  streamWithUsage,
  toolLoop,
  toolLoopOfAStream,
  toolLoopOfAnAgentWithStrictTools,
  thinkingIsApartAndGoesBack,
  reasoningEffort,
  optionsOfTheProviders,
  completions,
  cancelledStreamFreesItsRequest,
  errorsAreOfTheCall,
  forcedCalls,
);
