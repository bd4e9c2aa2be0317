// Calls as a Python list: [f(a=1, b="x"), g()], of small Llama 3.2 models and Llama 4.
import { begin, type CallReading, MAX_NAME, tried } from './json-call.js';
import type { Reading, TextInput } from './text-input.js';

/** Levels of lists and dicts in arguments. */
const MAX_LEVELS = 64;
/** Characters of a number or a constant. */
const MAX_LITERAL = 64;
const CONSTANTS: Readonly<Record<string, string>> = { True: 'true', False: 'false', None: 'null' };

/** Reads a list of calls. Returns false if no call of a known function follows. */
export function* readPythonCalls(reading: CallReading): Reading<boolean> {
  const { input } = reading;
  yield* input.skip('[');
  if (!(yield* readPythonCall(reading))) return false;
  for (;;) {
    yield* input.spaces();
    if (!(yield* input.skip(','))) break;
    if (!(yield* tried(reading, readPythonCall(reading)))) return true;
  }
  yield* input.skip(']');
  return true;
}

/** The call is sent as a whole: its text may turn out to be no call up to its last bracket. */
function* readPythonCall(reading: CallReading): Reading<boolean> {
  const { input, output } = reading;
  yield* input.spaces();
  const name = yield* input.upTo(['('], MAX_NAME);
  if (name === null || !reading.isKnown(name.trim())) return false;
  yield* input.skip('(');
  const entries: string[] = [];
  for (;;) {
    yield* input.spaces();
    if (yield* input.skip(')')) break;
    const key = yield* input.upTo(['='], MAX_NAME);
    if (key === null || !/^[A-Za-z_]\w*\s*$/.test(key)) return false;
    yield* input.skip('=');
    const value = yield* readPythonValue(input, MAX_LEVELS);
    if (value === null) return false;
    entries.push(`${JSON.stringify(key.trim())}: ${value}`);
    yield* input.spaces();
    if (yield* input.skip(',')) continue;
    if (!(yield* input.startsWith(')'))) return false;
  }
  begin(reading, name.trim());
  output.arguments(`{${entries.join(', ')}}`);
  output.end();
  return true;
}

/** A Python literal as JSON text; null if none follows. */
function* readPythonValue(input: TextInput, levels: number): Reading<string | null> {
  yield* input.spaces();
  const first = yield* input.peek();
  if (first === '"' || first === "'") return yield* readPythonString(input, first);
  if (first === '[' || first === '(') {
    return yield* readPythonItems(input, levels, first === '[' ? ']' : ')');
  }
  if (first === '{') return yield* readPythonItems(input, levels, '}');
  const text = (yield* input.upTo([',', ')', ']', '}', ':'], MAX_LITERAL))?.trim();
  if (text === undefined) return null;
  if (Object.hasOwn(CONSTANTS, text)) return CONSTANTS[text] ?? null;
  return /^-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$/.test(text) ? text : null;
}

/** A list, a tuple or a dict. */
function* readPythonItems(input: TextInput, levels: number, end: string): Reading<string | null> {
  if (levels === 0) return null;
  input.take(1);
  const items: string[] = [];
  for (;;) {
    yield* input.spaces();
    if (yield* input.skip(end)) break;
    const item = yield* readPythonValue(input, levels - 1);
    if (item === null) return null;
    yield* input.spaces();
    if (end === '}') {
      if (!item.startsWith('"') || !(yield* input.skip(':'))) return null;
      const value = yield* readPythonValue(input, levels - 1);
      if (value === null) return null;
      items.push(`${item}: ${value}`);
      yield* input.spaces();
    } else items.push(item);
    if (yield* input.skip(',')) continue;
    if (!(yield* input.startsWith(end))) return null;
  }
  const text = items.join(', ');
  return end === '}' ? `{${text}}` : `[${text}]`;
}

const ESCAPES: Readonly<Record<string, string>> = { n: '\n', t: '\t', r: '\r', b: '\b', f: '\f' };

function* readPythonString(input: TextInput, quote: string): Reading<string | null> {
  input.take(1);
  const parts: string[] = [];
  for (;;) {
    const marker = yield* input.until([quote, '\\'], (text) => parts.push(text));
    if (marker === null) return null;
    input.take(1);
    if (marker === quote) return JSON.stringify(parts.join(''));
    const letter = yield* input.peek();
    if (letter === '') return null;
    input.take(1);
    const digits = letter === 'u' ? 4 : letter === 'x' ? 2 : 0;
    if (digits === 0) parts.push(ESCAPES[letter] ?? letter);
    else {
      let code = '';
      while (code.length < digits && /^[0-9a-fA-F]$/.test(yield* input.peek())) {
        code += input.take(1);
      }
      if (code.length < digits) return null;
      parts.push(String.fromCharCode(Number.parseInt(code, 16)));
    }
  }
}
