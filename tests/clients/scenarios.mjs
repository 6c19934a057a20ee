// Runs the scenarios of one client: `node use_openai.mjs http://127.0.0.1:8000 demo [NAME…]`.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

const [url, model, ...names] = process.argv.slice(2);

// The server under test, and the model that it serves.
export const server = { url: url?.replace(/\/+$/, ""), model, baseURL: `${url?.replace(/\/+$/, "")}/v1` };

// The demo model answers these word for word at temperature 0, and every other model may differ.
export const SUM_QUESTION = "What is 27 plus 15?";
export const SUM_ANSWER = "27 + 15 = 42.";
export const WEATHER_QUESTION = "What is the weather in Paris?";
export const WEATHER_RESULT = { temperature: 21, sky: "sunny" };

// Requests so far whose client went away.
export async function aborted() {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const series = text.matchAll(/^vllm:request_success_total\{.*finished_reason="abort".*\} (\S+)$/gm);
  return [...series].reduce((sum, found) => sum + Number(found[1]), 0);
}

// Waits for something that the server does after a request.
export async function waitUntil(condition, milliseconds = 30000) {
  const end = Date.now() + milliseconds;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`not true within ${milliseconds} ms: ${condition}`);
    await sleep(20);
  }
}

// What an awaited call throws, which must be of this class.
export async function refused(kind, call) {
  const error = await call().then(
    () => assert.fail(`no ${kind.name}`),
    (thrown) => thrown,
  );
  assert.ok(error instanceof kind, `${error?.constructor?.name}, not ${kind.name}: ${error?.stack}`);
  return error;
}

// Runs functions in their order, or those that are named; exits with 1 where one fails.
export async function run(...scenarios) {
  if (!model) {
    console.error(`usage: node ${process.argv[1]} URL MODEL [NAME...]`);
    process.exit(2);
  }
  const chosen = scenarios.filter((one) => names.length === 0 || names.includes(one.name));
  let passed = 0;
  for (const one of chosen) {
    if (await passes(one)) passed += 1;
  }
  console.log(`${passed} of ${chosen.length} scenarios pass`);
  process.exit(passed > 0 && passed === chosen.length ? 0 : 1);
}

async function passes(one) {
  try {
    await one();
  } catch (error) {
    console.log(`FAILED ${one.name}\n${explain(error)}`);
    return false;
  }
  console.log(`ok     ${one.name}`);
  return true;
}

// An error with the lines of the script that led to it, without the client's own.
function explain(error) {
  const lines = String(error?.stack ?? error).split("\n");
  return lines
    .filter((line) => !/^\s+at .*(node_modules|node:internal)/.test(line))
    .map((line) => `    ${line}`)
    .join("\n");
}
