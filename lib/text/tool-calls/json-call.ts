// Calls in JSON: { "name": "f", "arguments": { .. } }, with the keys in any order.
import type { AnswerOutput } from './answer-events.js';
import type { Reading, TextInput } from './text-input.js';

/** Characters of keys, and of names of functions. */
export const MAX_NAME = 256;
const ARGUMENTS: ReadonlySet<string> = new Set(['arguments', 'parameters']);

/** Input and output of a parser. */
export interface CallReading {
  input: TextInput;
  output: AnswerOutput;
  /** Whether the request has a function of this name. */
  isKnown: (name: string) => boolean;
  /** The JSON schema of a parameter, if the request has one. */
  schemaOf: (name: string, parameter: string) => unknown;
}

/** Tries to read a call that begins here. If `read` returns false, its text becomes content. */
export function* tried({ input, output }: CallReading, read: Reading<boolean>): Reading<boolean> {
  input.mark();
  const isCall = yield* read;
  const text = input.unmark();
  if (!isCall) output.content(text);
  return isCall;
}

/** The beginning of the arguments is certain: the call is sent, and its text is no content. */
export function begin({ input, output }: CallReading, name: string): void {
  input.unmark();
  output.begin(name);
}

/**
 * Reads one call. Returns false if the text is no call. A call whose arguments are damaged or cut
 * off stays a call: they are sent as they are.
 */
export function* readJsonCall(reading: CallReading, anyName = true): Reading<boolean> {
  const { input, output } = reading;
  if (!(yield* input.skip('{'))) return false;
  let name: string | null = null;
  let early: string | null = null;
  let hasBegun = false;
  do {
    yield* input.spaces();
    const key = yield* readString(input, MAX_NAME);
    yield* input.spaces();
    if (key === null || !(yield* input.skip(':'))) break;
    yield* input.spaces();
    if (key === 'name' && !hasBegun) {
      name = yield* readString(input, MAX_NAME);
      if (name === null || name === '' || !(anyName || reading.isKnown(name))) return false;
    } else if (ARGUMENTS.has(key) && !hasBegun) {
      if (!(yield* input.startsWith('{'))) return false;
      if (name === null) early = yield* collect(input);
      else {
        begin(reading, name);
        hasBegun = true;
        if (!(yield* readValue(input, (text) => output.arguments(text)))) return true;
      }
    } else yield* readValue(input, () => {});
    yield* input.spaces();
  } while (yield* input.skip(','));
  const isClosed = yield* input.skip('}');
  if (hasBegun) {
    output.end();
    return true;
  }
  if (name === null || !isClosed) return false;
  begin(reading, name);
  output.arguments(early ?? '{}');
  output.end();
  return true;
}

/**
 * Reads `[call, call]`. Returns false if no call follows; a later text that is no call becomes
 * content.
 */
export function* readJsonCalls(reading: CallReading): Reading<boolean> {
  const { input } = reading;
  if (!(yield* input.skip('['))) return false;
  yield* input.spaces();
  if (!(yield* readJsonCall(reading))) return false;
  for (;;) {
    yield* input.spaces();
    if (!(yield* input.skip(','))) break;
    yield* input.spaces();
    if (!(yield* tried(reading, readJsonCall(reading)))) return true;
  }
  yield* input.skip(']');
  return true;
}

function* collect(input: TextInput): Reading<string> {
  const parts: string[] = [];
  yield* readValue(input, (text) => parts.push(text));
  return parts.join('');
}

/** Reads a string of at most `max` characters. Null if none follows. */
function* readString(input: TextInput, max: number): Reading<string | null> {
  if (!(yield* input.skip('"'))) return null;
  let raw = '';
  for (;;) {
    const part = yield* input.upTo(['"'], max - raw.length);
    if (part === null) return null;
    input.take(1);
    raw += part;
    if (isEscaped(raw)) raw += '"';
    else return parsedString(raw);
  }
}

/** An odd number of backslashes at the end escapes the next quote. */
const isEscaped = (text: string): boolean => (/\\*$/.exec(text)?.[0].length ?? 0) % 2 === 1;

function parsedString(raw: string): string | null {
  try {
    return JSON.parse(`"${raw}"`) as string;
  } catch {
    return null;
  }
}

const OPEN: ReadonlySet<string> = new Set(['{', '[']);
const CLOSE: ReadonlySet<string> = new Set(['}', ']']);

/**
 * Passes on the text of a value: an object or a list to its last bracket, else the text before the
 * next comma or bracket. Brackets in strings do not count. False if the text ends before.
 */
export function* readValue(input: TextInput, pass: (text: string) => void): Reading<boolean> {
  let depth = 0;
  let isText = false;
  let isEscape = false;
  while (yield* input.some()) {
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
