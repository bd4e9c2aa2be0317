// FunctionGemma and Gemma 4: call:f{key:<escape>text<escape>,n:3} between markers.
import { begin, type CallReading, MAX_NAME, tried } from './json-call.js';
import { contentTo } from './json-families.js';
import type { Reading, TextInput } from './text-input.js';

/** The markers of a family. */
interface GemmaMarkers {
  begin: string;
  end: string;
  /** Around texts. */
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

/** Characters of a number or a constant. */
const MAX_LITERAL = 4096;

export const gemmaCalls = (markers: GemmaMarkers) =>
  function* calls(reading: CallReading): Reading {
    while (yield* contentTo(reading, [markers.begin])) {
      yield* tried(reading, gemmaCall(reading, markers));
    }
  };

function* gemmaCall(reading: CallReading, markers: GemmaMarkers): Reading<boolean> {
  const { input, output } = reading;
  yield* input.skip(markers.begin);
  yield* input.spaces();
  if (!(yield* input.skip('call:'))) return false;
  const name = (yield* input.upTo(['{'], MAX_NAME))?.trim();
  if (!name) return false;
  begin(reading, name);
  if (!(yield* readFields(input, markers.quote, (text) => output.arguments(text)))) return true;
  output.end();
  yield* input.spaces();
  yield* input.skip(markers.end);
  return true;
}

/** Passes an object on as JSON. The stack replaces recursion. False if the text ends before. */
function* readFields(
  input: TextInput,
  quote: string,
  pass: (json: string) => void,
): Reading<boolean> {
  const open: ('}' | ']')[] = [];
  for (;;) {
    yield* input.spaces();
    const letter = yield* input.peek();
    if (letter === '') return false;
    if (letter === '{' || letter === '[') {
      pass(input.take(1));
      open.push(letter === '{' ? '}' : ']');
      yield* input.spaces();
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
      const end = yield* input.until([quote], (text) => pass(escapeText(text)));
      if (end === null) return false;
      yield* input.skip(quote);
      pass('"');
    } else {
      const text = yield* input.upTo([',', '}', ']'], MAX_LITERAL);
      if (text === null) return false;
      pass(literal(text.trim()));
    }
  }
}

function* readKey(input: TextInput, quote: string, pass: (json: string) => void): Reading {
  yield* input.spaces();
  const key = yield* input.upTo([':'], MAX_NAME);
  if (key === null) return;
  yield* input.skip(':');
  pass(`${JSON.stringify(key.replaceAll(quote, '').replace(/^"|"$/g, '').trim())}: `);
}

const literal = (text: string): string =>
  /^(true|false|null|-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?)$/.test(text)
    ? text
    : JSON.stringify(text);

/** As in JSON.stringify(), but a pair of surrogates may come in two pieces. */
const escapeText = (text: string): string =>
  // biome-ignore lint/suspicious/noControlCharactersInRegex: JSON escapes these.
  text.replace(/["\\\u0000-\u001f]/g, (letter) => JSON.stringify(letter).slice(1, -1));
