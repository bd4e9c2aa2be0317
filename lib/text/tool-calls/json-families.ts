// Parsers of families with calls in JSON: Hermes, Llama, Mistral, Phi and DeepSeek.
import {
  beginCall,
  type CallReading,
  MAX_NAME,
  readJsonCall,
  readJsonCalls,
  readValue,
  tryRead,
} from './json-call.js';
import { readPythonCalls } from './python-calls.js';
import type { Parser } from './text-input.js';

/**
 * Adds the text up to one of `markers` to the content. Returns the marker, still unread, or null at
 * the end of the text.
 */
export function* readContentTo(
  reading: CallReading,
  markers: readonly string[],
): Parser<string | null> {
  return yield* reading.input.passUntil(markers, (text) => reading.output.addContent(text));
}

/** Hermes, Qwen 2.5, Qwen 3: JSON between tags. The last end tag may be missing. */
export function* readHermesCalls(reading: CallReading): Parser {
  while (yield* readContentTo(reading, ['<tool_call>'])) {
    yield* tryRead(reading, readHermesCall(reading));
  }
}

function* readHermesCall(reading: CallReading): Parser<boolean> {
  const { input } = reading;
  yield* input.skip('<tool_call>');
  yield* input.skipSpaces();
  if (!(yield* readJsonCall(reading))) return false;
  for (;;) {
    yield* input.skipSpaces();
    // Small models write a brace too many, or several calls between one pair of tags.
    if (yield* input.skip('</tool_call>')) return true;
    if (yield* input.skip('}')) continue;
    if ((yield* input.peek()) !== '{') return true;
    if (!(yield* tryRead(reading, readJsonCall(reading)))) return true;
  }
}

/** Parses a forced call: one JSON call and no other text. */
export function* readForcedCall(reading: CallReading): Parser {
  yield* reading.input.skipSpaces();
  yield* tryRead(reading, readJsonCall(reading));
  yield* readContentTo(reading, []);
}

const PYTHON_TAG = '<|python_tag|>';

/**
 * Llama 3 and 4: bare JSON or Python calls at the start of an answer, or calls after
 * <|python_tag|>.
 */
export function* readLlamaCalls(reading: CallReading): Parser {
  yield* tryRead(reading, readBareCalls(reading, false));
  while (yield* readContentTo(reading, [PYTHON_TAG])) {
    yield* tryRead(reading, readBareCalls(reading, true));
  }
}

/**
 * Parses calls without tags. Answers may be JSON too, so a call must name a function of the
 * request.
 */
function* readBareCalls(reading: CallReading, isTagged: boolean): Parser<boolean> {
  const { input } = reading;
  if (isTagged) yield* input.skip(PYTHON_TAG);
  yield* input.skipSpaces();
  const first = yield* input.peek();
  if (first === '[') return yield* readPythonCalls(reading);
  if (first !== '{' || !(yield* readJsonCall(reading, isTagged))) return false;
  for (;;) {
    yield* input.skipSpaces();
    yield* input.skip(';');
    yield* input.skipSpaces();
    if ((yield* input.peek()) !== '{') return true;
    if (!(yield* tryRead(reading, readJsonCall(reading, isTagged)))) return true;
  }
}

const MISTRAL = '[TOOL_CALLS]';

/**
 * Mistral: a list of JSON calls after the marker. Since tokenizer v11: a name and its arguments.
 */
export function* readMistralCalls(reading: CallReading): Parser {
  while (yield* readContentTo(reading, [MISTRAL]))
    yield* tryRead(reading, readMistralCall(reading));
}

function* readMistralCall(reading: CallReading): Parser<boolean> {
  const { input, output } = reading;
  yield* input.skip(MISTRAL);
  yield* input.skipSpaces();
  const first = yield* input.peek();
  if (first === '[') return yield* readJsonCalls(reading);
  if (first === '{') return yield* readJsonCall(reading);
  const name = yield* input.readUpTo(['[ARGS]', '[CALL_ID]', '{'], MAX_NAME);
  if (name === null || name.trim() === '') return false;
  if (yield* input.skip('[CALL_ID]')) yield* input.readUpTo(['[ARGS]', '{'], MAX_NAME);
  yield* input.skip('[ARGS]');
  yield* input.skipSpaces();
  if (!(yield* input.startsWith('{'))) return false;
  beginCall(reading, name.trim());
  if (yield* readValue(input, (text) => output.addArguments(text))) output.endCall();
  return true;
}

/** Phi-4-mini: functools[{..}, {..}]. */
export function* readPhiCalls(reading: CallReading): Parser {
  while (yield* readContentTo(reading, ['functools']))
    yield* tryRead(reading, readPhiCall(reading));
}

function* readPhiCall(reading: CallReading): Parser<boolean> {
  yield* reading.input.skip('functools');
  yield* reading.input.skipSpaces();
  return yield* readJsonCalls(reading);
}

const CALLS = '<｜tool▁calls▁begin｜>';
const CALLS_END = '<｜tool▁calls▁end｜>';
const CALL = '<｜tool▁call▁begin｜>';
const CALL_END = '<｜tool▁call▁end｜>';
const SEPARATOR = '<｜tool▁sep｜>';
export const DEEPSEEK = [CALLS, CALLS_END, CALL, CALL_END, SEPARATOR];

/** DeepSeek V3 and R1: a type, a name and a code fence with JSON. V3.1: the name and bare JSON. */
export function* readDeepseekCalls(reading: CallReading): Parser {
  const { input } = reading;
  for (;;) {
    const marker = yield* readContentTo(reading, [CALLS, CALL, CALLS_END]);
    if (marker === null) return;
    if (marker === CALL) yield* tryRead(reading, readDeepseekCall(reading));
    else {
      yield* input.skip(marker);
      yield* input.skipSpaces();
    }
  }
}

function* readDeepseekCall(reading: CallReading): Parser<boolean> {
  const { input, output } = reading;
  yield* input.skip(CALL);
  let name = yield* input.readUpTo([SEPARATOR], MAX_NAME);
  if (name === null) return false;
  yield* input.skip(SEPARATOR);
  yield* input.skipSpaces();
  if (!(yield* input.startsWith('{'))) {
    name = yield* input.readUpTo(['\n', '{'], MAX_NAME);
    yield* input.skipSpaces();
    if (yield* input.skip('```')) yield* input.readUpTo(['\n', '{'], MAX_NAME);
    yield* input.skipSpaces();
  }
  if (name === null || name.trim() === '' || !(yield* input.startsWith('{'))) return false;
  beginCall(reading, name.trim());
  if (!(yield* readValue(input, (text) => output.addArguments(text)))) return true;
  output.endCall();
  yield* input.skipSpaces();
  yield* input.skip('```');
  yield* input.skipSpaces();
  yield* input.skip(CALL_END);
  yield* input.skipSpaces();
  return true;
}
