// Parsers of families with a tag for each argument: Qwen3-Coder and GLM 4.5. The schema determines
// the types of the raw values.
import { beginCall, type CallContext, MAX_NAME, tryRead } from './json-call.js';
import { readContentTo } from './json-families.js';
import type { Parser, TextInput } from './text-input.js';
import { isStringValue, permittedTypes } from './value-types.js';

/** Tags of a family. */
interface CallTags {
  /** A call starts with one of these. */
  calls: readonly string[];
  /** Reads from the start of a call to the function's name. Returns null if no name follows. */
  readName: (input: TextInput) => Parser<string | null>;
  /** Tags before and after the name of a parameter. `key[1]` also starts its value. */
  key: readonly [begin: string, end: string];
  value: readonly [begin: string, end: string];
  /** The arguments end before one of these. */
  ends: readonly string[];
}

const CALL = '<tool_call>';
const CALL_END = '</tool_call>';

const QWEN: CallTags = {
  calls: [CALL, '<function='],
  *readName(input) {
    if (yield* input.skip(CALL)) yield* input.skipSpaces();
    if (!(yield* input.skip('<function='))) return null;
    const name = yield* input.readUpTo(['>'], MAX_NAME);
    yield* input.skip('>');
    return name;
  },
  key: ['<parameter=', '>'],
  value: ['', '</parameter>'],
  ends: ['</function>', CALL_END],
};

const GLM: CallTags = {
  calls: [CALL],
  *readName(input) {
    yield* input.skip(CALL);
    return yield* input.readUpTo(['\n', '<arg_key>', CALL_END], MAX_NAME);
  },
  key: ['<arg_key>', '</arg_key>'],
  value: ['<arg_value>', '</arg_value>'],
  ends: [CALL_END],
};

export const readQwenCoderCalls = (context: CallContext): Parser => readTaggedCalls(context, QWEN);
export const readGlmCalls = (context: CallContext): Parser => readTaggedCalls(context, GLM);

function* readTaggedCalls(context: CallContext, tags: CallTags): Parser {
  while (yield* readContentTo(context, tags.calls))
    yield* tryRead(context, readTaggedCall(context, tags));
}

function* readTaggedCall(context: CallContext, tags: CallTags): Parser<boolean> {
  const { input, output } = context;
  const name = (yield* tags.readName(input))?.trim();
  if (!name || /[\s<>{}]/.test(name)) return false;
  beginCall(context, name);
  let isFirst = true;
  output.addArguments('{');
  for (;;) {
    yield* input.skipSpaces();
    if (yield* input.skip(tags.key[0])) {
      const entry = yield* readEntry(context, name, tags);
      if (entry === null) return true;
      output.addArguments(`${isFirst ? '' : ', '}${entry}`);
      isFirst = false;
    } else if (yield* isCallEnd(input, tags)) break;
    else if ((yield* input.peek()) === '') return true;
    else input.take(1); // Text between parameters belongs to no value.
  }
  output.addArguments('}');
  output.endCall();
  for (const end of tags.ends) {
    yield* input.skipSpaces();
    yield* input.skip(end);
  }
  return true;
}

/**
 * Returns whether the arguments end here: at an end tag, or at the start of a new call if the end
 * tag is missing.
 */
function* isCallEnd(input: TextInput, { ends, calls }: CallTags): Parser<boolean> {
  for (const marker of [...ends, ...calls]) {
    if (yield* input.startsWith(marker)) return true;
  }
  return false;
}

/** Parses a parameter to `"key": value`. Returns null if the text ends early. */
function* readEntry(
  { input, schemaOf }: CallContext,
  name: string,
  { key, value, ends }: CallTags,
): Parser<string | null> {
  const parameter = yield* input.readUpTo([key[1]], MAX_NAME);
  if (parameter === null) return null;
  yield* input.skip(key[1]);
  if (value[0] !== '') {
    yield* input.skipSpaces();
    yield* input.skip(value[0]);
  }
  const raw = yield* readRaw(input, value[1], [key[0], ...ends]);
  if (raw === null) return null;
  const parameterName = parameter.trim();
  return `${JSON.stringify(parameterName)}: ${toTypedJson(raw, schemaOf(name, parameterName))}`;
}

/**
 * Reads a raw value. A value may contain its own end tag, so only an end tag before another tag of
 * the call counts.
 */
function* readRaw(
  input: TextInput,
  end: string,
  followers: readonly string[],
): Parser<string | null> {
  const parts: string[] = [];
  while (yield* input.passUntil([end], (text) => parts.push(text))) {
    yield* input.skip(end);
    if (yield* input.isBefore(followers)) return parts.join('').replace(/^\n|\n$/g, '');
    parts.push(end);
  }
  return null;
}

/**
 * Converts a raw value to JSON. A schema that permits a string makes it a string, except for null.
 */
function toTypedJson(raw: string, schema: unknown): string {
  const types = permittedTypes(schema);
  const text = raw.trim();
  if (text === 'null' && (types.has('null') || !types.has('string'))) return 'null';
  if (isStringValue(schema)) return JSON.stringify(raw);
  if (types.has('boolean') && /^(true|false)$/i.test(text)) return text.toLowerCase();
  try {
    JSON.parse(text);
    return text;
  } catch {
    return JSON.stringify(raw);
  }
}
