// Families with a tag for each argument: Qwen3-Coder and GLM 4.5. Values are raw text, typed by the
// schema.
import { begin, type CallReading, MAX_NAME, tried } from './json-call.js';
import { contentTo } from './json-families.js';
import type { Reading, TextInput } from './text-input.js';
import { isTextual, typesIn } from './value-types.js';

/** The tags of a family. */
interface Tags {
  /** A call begins with one of these. */
  calls: readonly string[];
  /** Reads from the marker to the name, which it returns; null if none follows. */
  name: (input: TextInput) => Reading<string | null>;
  /** Before and after a name of a parameter, and before its value. */
  key: readonly [begin: string, end: string];
  value: readonly [begin: string, end: string];
  /** The arguments end before one of these. */
  ends: readonly string[];
}

const CALL = '<tool_call>';
const CALL_END = '</tool_call>';

const QWEN: Tags = {
  calls: [CALL, '<function='],
  *name(input) {
    if (yield* input.skip(CALL)) yield* input.spaces();
    if (!(yield* input.skip('<function='))) return null;
    const name = yield* input.upTo(['>'], MAX_NAME);
    yield* input.skip('>');
    return name;
  },
  key: ['<parameter=', '>'],
  value: ['', '</parameter>'],
  ends: ['</function>', CALL_END],
};

const GLM: Tags = {
  calls: [CALL],
  *name(input) {
    yield* input.skip(CALL);
    return yield* input.upTo(['\n', '<arg_key>', CALL_END], MAX_NAME);
  },
  key: ['<arg_key>', '</arg_key>'],
  value: ['<arg_value>', '</arg_value>'],
  ends: [CALL_END],
};

export const qwenCoderCalls = (reading: CallReading): Reading => taggedCalls(reading, QWEN);
export const glmCalls = (reading: CallReading): Reading => taggedCalls(reading, GLM);

function* taggedCalls(reading: CallReading, tags: Tags): Reading {
  while (yield* contentTo(reading, tags.calls)) yield* tried(reading, taggedCall(reading, tags));
}

function* taggedCall(reading: CallReading, tags: Tags): Reading<boolean> {
  const { input, output } = reading;
  const name = (yield* tags.name(input))?.trim();
  if (!name || /[\s<>{}]/.test(name)) return false;
  begin(reading, name);
  let isFirst = true;
  output.arguments('{');
  for (;;) {
    yield* input.spaces();
    if (yield* input.skip(tags.key[0])) {
      const entry = yield* readEntry(reading, name, tags);
      if (entry === null) return true;
      output.arguments(`${isFirst ? '' : ', '}${entry}`);
      isFirst = false;
    } else if (yield* isEnd(input, tags)) break;
    else if ((yield* input.peek()) === '') return true;
    else input.take(1); // Text between parameters belongs to no value.
  }
  output.arguments('}');
  output.end();
  for (const end of tags.ends) {
    yield* input.spaces();
    yield* input.skip(end);
  }
  return true;
}

/** A new call ends one without an end tag. */
function* isEnd(input: TextInput, { ends, calls }: Tags): Reading<boolean> {
  for (const marker of [...ends, ...calls]) {
    if (yield* input.startsWith(marker)) return true;
  }
  return false;
}

/** `"key": value`; null if the text ends before. */
function* readEntry(
  { input, schemaOf }: CallReading,
  name: string,
  { key, value, ends }: Tags,
): Reading<string | null> {
  const parameter = yield* input.upTo([key[1]], MAX_NAME);
  if (parameter === null) return null;
  yield* input.skip(key[1]);
  if (value[0] !== '') {
    yield* input.spaces();
    yield* input.skip(value[0]);
  }
  const raw = yield* readRaw(input, value[1], [key[0], ...ends]);
  if (raw === null) return null;
  const own = parameter.trim();
  return `${JSON.stringify(own)}: ${typed(raw, schemaOf(name, own))}`;
}

/** A value may hold its own end tag: only the one before another tag of the call counts. */
function* readRaw(
  input: TextInput,
  end: string,
  followers: readonly string[],
): Reading<string | null> {
  const parts: string[] = [];
  while (yield* input.until([end], (text) => parts.push(text))) {
    yield* input.skip(end);
    if (yield* input.isBefore(followers)) return parts.join('').replace(/^\n|\n$/g, '');
    parts.push(end);
  }
  return null;
}

/** The JSON of a raw value. A schema that permits a string makes it a string, except for null. */
function typed(raw: string, schema: unknown): string {
  const types = typesIn(schema);
  const text = raw.trim();
  if (text === 'null' && (types.has('null') || !types.has('string'))) return 'null';
  if (isTextual(schema)) return JSON.stringify(raw);
  if (types.has('boolean') && /^(true|false)$/i.test(text)) return text.toLowerCase();
  try {
    JSON.parse(text);
    return text;
  } catch {
    return JSON.stringify(raw);
  }
}
