// Parsers of families with calls in JSON: Hermes, Llama, Mistral, Phi and DeepSeek.
import {
  beginCall,
  type CallContext,
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
  context: CallContext,
  markers: readonly string[],
): Parser<string | null> {
  return yield* context.input.passUntil(markers, (text) => context.output.addContent(text));
}

/** Hermes, Qwen 2.5, Qwen 3: JSON between tags. The last end tag may be missing. */
export function* readHermesCalls(context: CallContext): Parser {
  while (yield* readContentTo(context, ['<tool_call>'])) {
    yield* tryRead(context, readHermesCall(context));
  }
}

function* readHermesCall(context: CallContext): Parser<boolean> {
  const { input } = context;
  yield* input.skip('<tool_call>');
  yield* input.skipSpaces();
  if (!(yield* readJsonCall(context))) return false;
  for (;;) {
    yield* input.skipSpaces();
    // Small models write a brace too many, or several calls between one pair of tags.
    if (yield* input.skip('</tool_call>')) return true;
    if (yield* input.skip('}')) continue;
    if ((yield* input.peek()) !== '{') return true;
    if (!(yield* tryRead(context, readJsonCall(context)))) return true;
  }
}

/** Parses a forced call: one JSON call and no other text. */
export function* readForcedCall(context: CallContext): Parser {
  yield* context.input.skipSpaces();
  yield* tryRead(context, readJsonCall(context));
  yield* readContentTo(context, []);
}

const PYTHON_TAG = '<|python_tag|>';

/**
 * Llama 3 and 4: bare JSON or Python calls at the start of an answer, or calls after
 * <|python_tag|>.
 */
export function* readLlamaCalls(context: CallContext): Parser {
  yield* tryRead(context, readBareCalls(context, false));
  while (yield* readContentTo(context, [PYTHON_TAG])) {
    yield* tryRead(context, readBareCalls(context, true));
  }
}

/**
 * Parses calls without tags. Answers may be JSON too, so a call must name a function of the
 * request.
 */
function* readBareCalls(context: CallContext, isTagged: boolean): Parser<boolean> {
  const { input } = context;
  if (isTagged) yield* input.skip(PYTHON_TAG);
  yield* input.skipSpaces();
  const first = yield* input.peek();
  if (first === '[') return yield* readPythonCalls(context);
  if (first !== '{' || !(yield* readJsonCall(context, isTagged))) return false;
  for (;;) {
    yield* input.skipSpaces();
    yield* input.skip(';');
    yield* input.skipSpaces();
    if ((yield* input.peek()) !== '{') return true;
    if (!(yield* tryRead(context, readJsonCall(context, isTagged)))) return true;
  }
}

const MISTRAL = '[TOOL_CALLS]';

/**
 * Mistral: a list of JSON calls after the marker. Since tokenizer v11: a name and its arguments.
 */
export function* readMistralCalls(context: CallContext): Parser {
  while (yield* readContentTo(context, [MISTRAL]))
    yield* tryRead(context, readMistralCall(context));
}

function* readMistralCall(context: CallContext): Parser<boolean> {
  const { input, output } = context;
  yield* input.skip(MISTRAL);
  yield* input.skipSpaces();
  const first = yield* input.peek();
  if (first === '[') return yield* readJsonCalls(context);
  if (first === '{') return yield* readJsonCall(context);
  const name = yield* input.readUpTo(['[ARGS]', '[CALL_ID]', '{'], MAX_NAME);
  if (name === null || name.trim() === '') return false;
  if (yield* input.skip('[CALL_ID]')) yield* input.readUpTo(['[ARGS]', '{'], MAX_NAME);
  yield* input.skip('[ARGS]');
  yield* input.skipSpaces();
  if (!(yield* input.startsWith('{'))) return false;
  beginCall(context, name.trim());
  if (yield* readValue(input, (text) => output.addArguments(text))) output.endCall();
  return true;
}

/** Phi-4-mini: functools[{..}, {..}]. */
export function* readPhiCalls(context: CallContext): Parser {
  while (yield* readContentTo(context, ['functools']))
    yield* tryRead(context, readPhiCall(context));
}

function* readPhiCall(context: CallContext): Parser<boolean> {
  yield* context.input.skip('functools');
  yield* context.input.skipSpaces();
  return yield* readJsonCalls(context);
}

const CALLS = '<｜tool▁calls▁begin｜>';
const CALLS_END = '<｜tool▁calls▁end｜>';
const CALL = '<｜tool▁call▁begin｜>';
const CALL_END = '<｜tool▁call▁end｜>';
const SEPARATOR = '<｜tool▁sep｜>';
export const DEEPSEEK = [CALLS, CALLS_END, CALL, CALL_END, SEPARATOR];

/** DeepSeek V3 and R1: a type, a name and a code fence with JSON. V3.1: the name and bare JSON. */
export function* readDeepseekCalls(context: CallContext): Parser {
  const { input } = context;
  for (;;) {
    const marker = yield* readContentTo(context, [CALLS, CALL, CALLS_END]);
    if (marker === null) return;
    if (marker === CALL) yield* tryRead(context, readDeepseekCall(context));
    else {
      yield* input.skip(marker);
      yield* input.skipSpaces();
    }
  }
}

function* readDeepseekCall(context: CallContext): Parser<boolean> {
  const { input, output } = context;
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
  beginCall(context, name.trim());
  if (!(yield* readValue(input, (text) => output.addArguments(text)))) return true;
  output.endCall();
  yield* input.skipSpaces();
  yield* input.skip('```');
  yield* input.skipSpaces();
  yield* input.skip(CALL_END);
  yield* input.skipSpaces();
  return true;
}
