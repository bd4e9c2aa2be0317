// Parses calls in JSON: { "name": "f", "arguments": { .. } }, with the keys in any order.
import type { AnswerOutput } from './answer-events.js';
import type { Parser, TextInput } from './text-input.js';

/** Maximum characters of keys and of function names. */
export const MAX_NAME = 256;
const ARGUMENTS: ReadonlySet<string> = new Set(['arguments', 'parameters']);

/** Input and output of a parser. */
export interface CallContext {
  input: TextInput;
  output: AnswerOutput;
  /** Returns whether the request has a function of this name. */
  isKnown: (name: string) => boolean;
  /** Returns the JSON schema of a parameter, if the request has one. */
  schemaOf: (name: string, parameter: string) => unknown;
}

/** Runs a parser of a call. If it returns false, the text it has read becomes content. */
export function* tryRead({ input, output }: CallContext, read: Parser<boolean>): Parser<boolean> {
  input.mark();
  const isCall = yield* read;
  const text = input.unmark();
  if (!isCall) output.addContent(text);
  return isCall;
}

/**
 * Sends the start of a call once its arguments have started. Its text can no longer become content.
 */
export function beginCall({ input, output }: CallContext, name: string): void {
  input.unmark();
  output.beginCall(name);
}

/**
 * Parses one call. Returns false if the text is no call. If the arguments are damaged or cut off,
 * they are sent unchanged.
 */
export function* readJsonCall(context: CallContext, anyName = true): Parser<boolean> {
  const { input, output } = context;
  if (!(yield* input.skip('{'))) return false;
  let name: string | null = null;
  let early: string | null = null;
  let hasBegun = false;
  do {
    yield* input.skipSpaces();
    const key = yield* readString(input, MAX_NAME);
    yield* input.skipSpaces();
    if (key === null || !(yield* input.skip(':'))) break;
    yield* input.skipSpaces();
    if (key === 'name' && !hasBegun) {
      name = yield* readString(input, MAX_NAME);
      if (name === null || name === '' || !(anyName || context.isKnown(name))) return false;
    } else if (ARGUMENTS.has(key) && !hasBegun) {
      if (!(yield* input.startsWith('{'))) return false;
      if (name === null) early = yield* readArguments(input);
      else {
        beginCall(context, name);
        hasBegun = true;
        if (!(yield* readValue(input, (text) => output.addArguments(text)))) return true;
      }
    } else yield* readValue(input, () => {});
    yield* input.skipSpaces();
  } while (yield* input.skip(','));
  const isClosed = yield* input.skip('}');
  if (hasBegun) {
    output.endCall();
    return true;
  }
  if (name === null || !isClosed) return false;
  beginCall(context, name);
  output.addArguments(early ?? '{}');
  output.endCall();
  return true;
}

/**
 * Parses `[call, call]`. Returns false if no call follows. Later text that is no call becomes
 * content.
 */
export function* readJsonCalls(context: CallContext): Parser<boolean> {
  const { input } = context;
  if (!(yield* input.skip('['))) return false;
  yield* input.skipSpaces();
  if (!(yield* readJsonCall(context))) return false;
  for (;;) {
    yield* input.skipSpaces();
    if (!(yield* input.skip(','))) break;
    yield* input.skipSpaces();
    if (!(yield* tryRead(context, readJsonCall(context)))) return true;
  }
  yield* input.skip(']');
  return true;
}

function* readArguments(input: TextInput): Parser<string> {
  const parts: string[] = [];
  yield* readValue(input, (text) => parts.push(text));
  return parts.join('');
}

/** Reads a string of at most `max` characters. Returns null if none follows. */
function* readString(input: TextInput, max: number): Parser<string | null> {
  if (!(yield* input.skip('"'))) return null;
  let raw = '';
  for (;;) {
    const part = yield* input.readUpTo(['"'], max - raw.length);
    if (part === null) return null;
    input.take(1);
    raw += part;
    if (isEscaped(raw)) raw += '"';
    else return parseString(raw);
  }
}

/** Returns whether the next quote is escaped, by an odd number of backslashes at the end. */
const isEscaped = (text: string): boolean => (/\\*$/.exec(text)?.[0].length ?? 0) % 2 === 1;

function parseString(raw: string): string | null {
  try {
    return JSON.parse(`"${raw}"`) as string;
  } catch {
    return null;
  }
}

const OPEN: ReadonlySet<string> = new Set(['{', '[']);
const CLOSE: ReadonlySet<string> = new Set(['}', ']']);

/**
 * Passes on the text of a value: an object or a list up to its last bracket, else the text before
 * the next comma or bracket. Ignores brackets in strings. Returns false if the text ends early.
 */
export function* readValue(input: TextInput, pass: (text: string) => void): Parser<boolean> {
  let depth = 0;
  let isText = false;
  let isEscape = false;
  while (yield* input.waitForText()) {
    const text = input.ready;
    for (let i = 0; i < text.length; ++i) {
      const letter = text.charAt(i);
      if (isText) {
        if (isEscape) isEscape = false;
        else if (letter === '\\') isEscape = true;
        else if (letter === '"') isText = false;
      } else if (letter === '"') isText = true;
      else if (OPEN.has(letter)) depth++;
      else if (depth === 0 && (letter === ',' || CLOSE.has(letter))) {
        if (i > 0) pass(input.take(i));
        return true;
      } else if (CLOSE.has(letter) && --depth === 0) {
        pass(input.take(i + 1));
        return true;
      }
    }
    pass(input.take(text.length));
  }
  return false;
}
