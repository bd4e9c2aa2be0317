// Parses calls as a Python list, [f(a=1, b="x"), g()], of small Llama 3.2 models and Llama 4.
import { beginCall, type CallContext, MAX_NAME, tryRead } from './json-call.js';
import type { Parser, TextInput } from './text-input.js';

/** Maximum nesting of lists and dicts in arguments. */
const MAX_LEVELS = 64;
/** Maximum characters of a number or a constant. */
const MAX_LITERAL = 64;
const CONSTANTS: Readonly<Record<string, string>> = { True: 'true', False: 'false', None: 'null' };

/** Parses a list of calls. Returns false if no call of a known function follows. */
export function* readPythonCalls(context: CallContext): Parser<boolean> {
  const { input } = context;
  yield* input.skip('[');
  if (!(yield* readPythonCall(context))) return false;
  for (;;) {
    yield* input.skipSpaces();
    if (!(yield* input.skip(','))) break;
    if (!(yield* tryRead(context, readPythonCall(context)))) return true;
  }
  yield* input.skip(']');
  return true;
}

/**
 * Parses one call and sends it when it is complete. Until the last bracket, the text may turn out
 * not to be a call.
 */
function* readPythonCall(context: CallContext): Parser<boolean> {
  const { input, output } = context;
  yield* input.skipSpaces();
  const name = yield* input.readUpTo(['('], MAX_NAME);
  if (name === null || !context.isKnown(name.trim())) return false;
  yield* input.skip('(');
  const entries: string[] = [];
  for (;;) {
    yield* input.skipSpaces();
    if (yield* input.skip(')')) break;
    const key = yield* input.readUpTo(['='], MAX_NAME);
    if (key === null || !/^[A-Za-z_]\w*\s*$/.test(key)) return false;
    yield* input.skip('=');
    const value = yield* readPythonValue(input, MAX_LEVELS);
    if (value === null) return false;
    entries.push(`${JSON.stringify(key.trim())}: ${value}`);
    yield* input.skipSpaces();
    if (yield* input.skip(',')) continue;
    if (!(yield* input.startsWith(')'))) return false;
  }
  beginCall(context, name.trim());
  output.addArguments(`{${entries.join(', ')}}`);
  output.endCall();
  return true;
}

/** Parses a Python literal to JSON text. Returns null if none follows. */
function* readPythonValue(input: TextInput, levels: number): Parser<string | null> {
  yield* input.skipSpaces();
  const first = yield* input.peek();
  if (first === '"' || first === "'") return yield* readPythonString(input, first);
  if (first === '[' || first === '(') {
    return yield* readPythonItems(input, levels, first === '[' ? ']' : ')');
  }
  if (first === '{') return yield* readPythonItems(input, levels, '}');
  const text = (yield* input.readUpTo([',', ')', ']', '}', ':'], MAX_LITERAL))?.trim();
  if (text === undefined) return null;
  if (Object.hasOwn(CONSTANTS, text)) return CONSTANTS[text] ?? null;
  return /^-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$/.test(text) ? text : null;
}

/** Parses the items of a list, a tuple or a dict. */
function* readPythonItems(input: TextInput, levels: number, end: string): Parser<string | null> {
  if (levels === 0) return null;
  input.take(1);
  const items: string[] = [];
  for (;;) {
    yield* input.skipSpaces();
    if (yield* input.skip(end)) break;
    const item = yield* readPythonValue(input, levels - 1);
    if (item === null) return null;
    yield* input.skipSpaces();
    if (end === '}') {
      if (!item.startsWith('"') || !(yield* input.skip(':'))) return null;
      const value = yield* readPythonValue(input, levels - 1);
      if (value === null) return null;
      items.push(`${item}: ${value}`);
      yield* input.skipSpaces();
    } else items.push(item);
    if (yield* input.skip(',')) continue;
    if (!(yield* input.startsWith(end))) return null;
  }
  const text = items.join(', ');
  return end === '}' ? `{${text}}` : `[${text}]`;
}

const ESCAPES: Readonly<Record<string, string>> = { n: '\n', t: '\t', r: '\r', b: '\b', f: '\f' };

function* readPythonString(input: TextInput, quote: string): Parser<string | null> {
  input.take(1);
  const parts: string[] = [];
  for (;;) {
    const marker = yield* input.passUntil([quote, '\\'], (text) => parts.push(text));
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
