// Compiles a format to the description of its grammar. Runs in a worker.
import { utf8 } from './characters.js';
import { Description, type Node } from './description.js';
import { ebnfNode } from './ebnf.js';
import { fieldsNode } from './fields.js';
import type { AnswerCalls, FormatSource } from './format.js';
import { patternNode } from './pattern.js';
import { SchemaCompiler } from './schema.js';
import type { Schema } from './schema-merge.js';

/** Returns the words for NativeGrammar.build(). Throws DS_ARGUMENT, DS_LIMIT. */
export function compileRules(source: FormatSource): Int32Array<ArrayBuffer> {
  const to = new Description();
  return to.finish(nodeOf(to, source));
}

function nodeOf(to: Description, source: FormatSource): Node {
  switch (source.kind) {
    case 'schema':
      return new SchemaCompiler(to, source.schema).compile();
    case 'jsonObject':
      return new SchemaCompiler(to, {}).anyObject();
    case 'choice':
      return to.texts(source.choice);
    case 'grammar':
      return ebnfNode(to, source.grammar);
    case 'answer':
      return answerNode(to, source);
    case 'regex': {
      const options = {
        op: 'format regex',
        character: (points: Parameters<typeof utf8>[1]) => utf8(to, points),
        isSearch: false,
      };
      return patternNode(to, source.regex, options);
    }
  }
}

/** Maximum number of spaces and line ends beside a tag. */
const MAX_SPACES = 8;

/** Reasoning up to its end tag, then calls or the text of a format. */
function answerNode(to: Description, source: FormatSource & { kind: 'answer' }): Node {
  const { reasoning, calls, format } = source.answer;
  const spaces = to.repeat(to.bytes([9, 10], [13, 13], [32, 32]), 0, MAX_SPACES);
  const text = format && nodeOf(to, format);
  const rest = calls ? callsNode(to, calls, { text, spaces }) : (text ?? textWithout(to, null));
  if (!reasoning) return rest;
  const { begin, end } = reasoning;
  const thought = to.seq(textWithout(to, end), to.text(end), spaces);
  if (begin === null) return to.seq(thought, rest);
  return to.seq(to.optional(to.seq(spaces, to.text(begin), thought)), rest);
}

/** Calls within any text; with a format, calls in place of its text. */
function callsNode(
  to: Description,
  calls: AnswerCalls,
  { text, spaces }: { text: Node | null; spaces: Node },
): Node {
  const { begin, bare, isSingle } = calls;
  const call = oneOf(to, calls, spaces);
  const marked = markedCalls(to, calls, { call, spaces });
  const whole = bare ? joinCalls(to, { call, spaces, isSingle }) : null;
  const max = isSingle ? 1 : Number.POSITIVE_INFINITY;
  if (text !== null) {
    const several = to.repeat(to.seq(spaces, marked), 1, max);
    return to.any(text, several, ...(whole === null ? [] : [to.seq(spaces, whole)]));
  }
  const plain = textWithout(to, begin, ...(calls.others ?? []));
  if (calls.closers) return closedCalls(to, calls.closers, { plain, marked, spaces, isSingle });
  const between = to.seq(to.repeat(to.seq(plain, marked), 0, max), plain);
  if (whole === null || !bare) return between;
  const first = to.all(plain, to.without(bareStart(to, bare)));
  // Readers take an object after a call for the next one, so no text follows.
  return to.any(to.seq(spaces, whole, spaces), to.seq(first, to.optional(to.seq(marked, spaces))));
}

/** Text and calls that end with a closer, or with the answer. */
function closedCalls(
  to: Description,
  closers: readonly string[],
  {
    plain,
    marked,
    spaces,
    isSingle,
  }: Record<'plain' | 'marked' | 'spaces', Node> & {
    isSingle: boolean;
  },
): Node {
  const call = to.seq(marked, spaces);
  const closed = to.seq(call, to.texts(closers), plain);
  if (isSingle) return to.seq(plain, to.any(to.epsilon, call, closed));
  return to.seq(plain, to.star(closed), to.optional(call));
}

/** Returns a node that matches one call without its marker. */
function oneOf(to: Description, { forms, tags, marker }: AnswerCalls, spaces: Node): Node {
  return to.any(
    ...forms.map(({ before, schema, fields, after }) => {
      const rest =
        fields === undefined || !tags
          ? new SchemaCompiler(to, schema as Schema, marker).compile()
          : to.seq(fieldsNode(to, fields, tags, spaces), spaces);
      const head = typeof before === 'string' ? to.text(before) : to.texts(before);
      return to.seq(head, rest, to.text(after));
    }),
  );
}

/** A marker and its calls. */
function markedCalls(
  to: Description,
  { begin, end, list, bare, isSingle }: AnswerCalls,
  { call, spaces }: { call: Node; spaces: Node },
): Node {
  if (bare) return to.seq(to.text(begin), spaces, joinCalls(to, { call, spaces, isSingle }));
  if (list) {
    const rest = to.seq(spaces, to.text(','), spaces, call);
    const all = isSingle ? call : to.seq(call, to.star(rest));
    const gap = list.open === '' ? [] : [spaces, to.text(list.open)];
    return to.seq(to.text(begin), ...gap, spaces, all, spaces, to.text(list.close));
  }
  if (end === '') return to.seq(to.text(begin), spaces, call);
  return to.seq(to.text(begin), spaces, call, spaces, to.text(end));
}

/** Calls with ";" between them. */
function joinCalls(
  to: Description,
  { call, spaces, isSingle }: { call: Node; spaces: Node; isSingle: boolean },
): Node {
  if (isSingle) return call;
  return to.seq(call, to.star(to.seq(spaces, to.text(';'), spaces, call)));
}

/** Texts that begin as an object with the name of a function: readers take them for a call. */
function bareStart(to: Description, names: readonly string[]): Node {
  const space = to.star(to.bytes([9, 10], [13, 13], [32, 32]));
  const all = to.star(to.bytes([0, 255]));
  const key = to.seq(to.text('"name"'), space, to.text(':'), space);
  const named = to.texts(names.map((name) => JSON.stringify(name)));
  return to.seq(space, to.text('{'), all, key, named, all);
}

/** Bytes without the tags. No tag begins with an end of its own, so a tag after them ends them. */
function textWithout(to: Description, ...tags: readonly (string | null)[]): Node {
  const all = to.star(to.bytes([0, 255]));
  const tagNames = tags.filter((tag) => tag !== null);
  if (tagNames.length === 0) return all;
  return to.without(to.seq(all, to.any(...tagNames.map((tag) => to.text(tag))), all));
}
