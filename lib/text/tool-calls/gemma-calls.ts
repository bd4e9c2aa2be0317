// Parses calls of FunctionGemma and Gemma 4: call:f{key:<escape>text<escape>,n:3} between markers.
import { beginCall, type CallContext, MAX_NAME, tryRead } from './json-call.js';
import { readContentTo } from './json-families.js';
import type { Parser, TextInput } from './text-input.js';

/** Markers of a family. */
interface GemmaMarkers {
  begin: string;
  end: string;
  /** Marker around texts. */
  quote: string;
}

export const FUNCTION_GEMMA: GemmaMarkers = {
  begin: '<start_function_call>',
  end: '<end_function_call>',
  quote: '<escape>',
};
export const GEMMA_4: GemmaMarkers = {
  begin: '<|tool_call>',
  end: '<tool_call|>',
  quote: '<|"|>',
};

/** Maximum characters of a number or a constant. */
const MAX_LITERAL = 4096;

export const readGemmaCalls = (markers: GemmaMarkers) =>
  function* calls(context: CallContext): Parser {
    while (yield* readContentTo(context, [markers.begin])) {
      yield* tryRead(context, readGemmaCall(context, markers));
    }
  };

function* readGemmaCall(context: CallContext, markers: GemmaMarkers): Parser<boolean> {
  const { input, output } = context;
  yield* input.skip(markers.begin);
  yield* input.skipSpaces();
  if (!(yield* input.skip('call:'))) return false;
  const name = (yield* input.readUpTo(['{'], MAX_NAME))?.trim();
  if (!name) return false;
  beginCall(context, name);
  if (!(yield* readFields(input, markers.quote, (text) => output.addArguments(text)))) return true;
  output.endCall();
  yield* input.skipSpaces();
  yield* input.skip(markers.end);
  return true;
}

/**
 * Converts an object to JSON while it arrives. Uses a stack instead of recursion. Returns false if
 * the text ends early.
 */
function* readFields(
  input: TextInput,
  quote: string,
  pass: (json: string) => void,
): Parser<boolean> {
  const open: ('}' | ']')[] = [];
  for (;;) {
    yield* input.skipSpaces();
    const letter = yield* input.peek();
    if (letter === '') return false;
    if (letter === '{' || letter === '[') {
      pass(input.take(1));
      open.push(letter === '{' ? '}' : ']');
      yield* input.skipSpaces();
      if (letter === '{' && !(yield* input.startsWith('}'))) yield* readKey(input, quote, pass);
    } else if (letter === '}' || letter === ']') {
      input.take(1);
      pass(open.pop() ?? '');
      if (open.length === 0) return true;
    } else if (letter === ',') {
      pass(`${input.take(1)} `);
      if (open.at(-1) === '}') yield* readKey(input, quote, pass);
    } else if (yield* input.skip(quote)) {
      pass('"');
      const end = yield* input.passUntil([quote], (text) => pass(escapeText(text)));
      if (end === null) return false;
      yield* input.skip(quote);
      pass('"');
    } else {
      const text = yield* input.readUpTo([',', '}', ']'], MAX_LITERAL);
      if (text === null) return false;
      pass(toJsonLiteral(text.trim()));
    }
  }
}

function* readKey(input: TextInput, quote: string, pass: (json: string) => void): Parser {
  yield* input.skipSpaces();
  const key = yield* input.readUpTo([':'], MAX_NAME);
  if (key === null) return;
  yield* input.skip(':');
  pass(`${JSON.stringify(key.replaceAll(quote, '').replace(/^"|"$/g, '').trim())}: `);
}

const toJsonLiteral = (text: string): string =>
  /^(true|false|null|-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?)$/.test(text)
    ? text
    : JSON.stringify(text);

/** Escapes as JSON.stringify() does, but a surrogate pair may arrive in two pieces. */
const escapeText = (text: string): string =>
  // biome-ignore lint/suspicious/noControlCharactersInRegex: JSON escapes these.
  text.replace(/["\\\u0000-\u001f]/g, (letter) => JSON.stringify(letter).slice(1, -1));
