// Families with calls in JSON: Hermes, Llama, Mistral, Phi and DeepSeek.
import {
  begin,
  type CallReading,
  MAX_NAME,
  readJsonCall,
  readJsonCalls,
  readValue,
  tried,
} from './json-call.js';
import { readPythonCalls } from './python-calls.js';
import type { Reading } from './text-input.js';

/** Passes content on up to a marker; false at the end. */
export function* contentTo(
  reading: CallReading,
  markers: readonly string[],
): Reading<string | null> {
  return yield* reading.input.until(markers, (text) => reading.output.content(text));
}

/** Hermes, Qwen 2.5, Qwen 3: JSON between tags. The last end tag may be missing. */
export function* hermesCalls(reading: CallReading): Reading {
  while (yield* contentTo(reading, ['<tool_call>'])) {
    yield* tried(reading, hermesCall(reading));
  }
}

function* hermesCall(reading: CallReading): Reading<boolean> {
  const { input } = reading;
  yield* input.skip('<tool_call>');
  yield* input.spaces();
  if (!(yield* readJsonCall(reading))) return false;
  for (;;) {
    yield* input.spaces();
    // Small models write a brace too many, or several calls between one pair of tags.
    if (yield* input.skip('</tool_call>')) return true;
    if (yield* input.skip('}')) continue;
    if ((yield* input.peek()) !== '{') return true;
    if (!(yield* tried(reading, readJsonCall(reading)))) return true;
  }
}

/** One JSON call and nothing else: the text of a forced call. */
export function* forcedCall(reading: CallReading): Reading {
  yield* reading.input.spaces();
  yield* tried(reading, readJsonCall(reading));
  yield* contentTo(reading, []);
}

const PYTHON_TAG = '<|python_tag|>';

/** Llama 3 and 4: bare JSON or Python calls at the start of an answer, or JSON after a tag. */
export function* llamaCalls(reading: CallReading): Reading {
  yield* tried(reading, bareCalls(reading, false));
  while (yield* contentTo(reading, [PYTHON_TAG])) {
    yield* tried(reading, bareCalls(reading, true));
  }
}

/** Answers are JSON too: a bare call must name a function of the request. */
function* bareCalls(reading: CallReading, isTagged: boolean): Reading<boolean> {
  const { input } = reading;
  if (isTagged) yield* input.skip(PYTHON_TAG);
  yield* input.spaces();
  const first = yield* input.peek();
  if (first === '[') return yield* readPythonCalls(reading);
  if (first !== '{' || !(yield* readJsonCall(reading, isTagged))) return false;
  for (;;) {
    yield* input.spaces();
    yield* input.skip(';');
    yield* input.spaces();
    if ((yield* input.peek()) !== '{') return true;
    if (!(yield* tried(reading, readJsonCall(reading, isTagged)))) return true;
  }
}

const MISTRAL = '[TOOL_CALLS]';

/** Mistral: a list of JSON calls after the marker; since tokenizer v11 a name and its arguments. */
export function* mistralCalls(reading: CallReading): Reading {
  while (yield* contentTo(reading, [MISTRAL])) yield* tried(reading, mistralCall(reading));
}

function* mistralCall(reading: CallReading): Reading<boolean> {
  const { input, output } = reading;
  yield* input.skip(MISTRAL);
  yield* input.spaces();
  const first = yield* input.peek();
  if (first === '[') return yield* readJsonCalls(reading);
  if (first === '{') return yield* readJsonCall(reading);
  const name = yield* input.upTo(['[ARGS]', '[CALL_ID]', '{'], MAX_NAME);
  if (name === null || name.trim() === '') return false;
  if (yield* input.skip('[CALL_ID]')) yield* input.upTo(['[ARGS]', '{'], MAX_NAME);
  yield* input.skip('[ARGS]');
  yield* input.spaces();
  if (!(yield* input.startsWith('{'))) return false;
  begin(reading, name.trim());
  if (yield* readValue(input, (text) => output.arguments(text))) output.end();
  return true;
}

/** Phi-4-mini: functools[{..}, {..}]. */
export function* phiCalls(reading: CallReading): Reading {
  while (yield* contentTo(reading, ['functools'])) yield* tried(reading, phiCall(reading));
}

function* phiCall(reading: CallReading): Reading<boolean> {
  yield* reading.input.skip('functools');
  yield* reading.input.spaces();
  return yield* readJsonCalls(reading);
}

const CALLS = '<｜tool▁calls▁begin｜>';
const CALLS_END = '<｜tool▁calls▁end｜>';
const CALL = '<｜tool▁call▁begin｜>';
const CALL_END = '<｜tool▁call▁end｜>';
const SEPARATOR = '<｜tool▁sep｜>';
export const DEEPSEEK = [CALLS, CALLS_END, CALL, CALL_END, SEPARATOR];

/**
 * DeepSeek V3 and R1: a type, a name and a code fence with JSON. V3.1: the name and bare JSON.
 */
export function* deepseekCalls(reading: CallReading): Reading {
  const { input } = reading;
  for (;;) {
    const marker = yield* contentTo(reading, [CALLS, CALL, CALLS_END]);
    if (marker === null) return;
    if (marker === CALL) yield* tried(reading, deepseekCall(reading));
    else {
      yield* input.skip(marker);
      yield* input.spaces();
    }
  }
}

function* deepseekCall(reading: CallReading): Reading<boolean> {
  const { input, output } = reading;
  yield* input.skip(CALL);
  let name = yield* input.upTo([SEPARATOR], MAX_NAME);
  if (name === null) return false;
  yield* input.skip(SEPARATOR);
  yield* input.spaces();
  if (!(yield* input.startsWith('{'))) {
    name = yield* input.upTo(['\n', '{'], MAX_NAME);
    yield* input.spaces();
    if (yield* input.skip('```')) yield* input.upTo(['\n', '{'], MAX_NAME);
    yield* input.spaces();
  }
  if (name === null || name.trim() === '' || !(yield* input.startsWith('{'))) return false;
  begin(reading, name.trim());
  if (!(yield* readValue(input, (text) => output.arguments(text)))) return true;
  output.end();
  yield* input.spaces();
  yield* input.skip('```');
  yield* input.spaces();
  yield* input.skip(CALL_END);
  yield* input.spaces();
  return true;
}
