// Compiles a format to a serialized grammar. Runs in a worker thread.
import { utf8Node } from './characters.js';
import { GrammarBuilder, type Node } from './description.js';
import { ebnfNode } from './ebnf.js';
import { fieldsNode } from './fields.js';
import type { AnswerCalls, FormatSource } from './format.js';
import { patternNode } from './pattern.js';
import { SchemaCompiler } from './schema.js';
import type { Schema } from './schema-merge.js';

/** Returns the serialized grammar for NativeGrammar.build(). Throws DS_ARGUMENT, DS_LIMIT. */
export function compileRules(source: FormatSource): Int32Array<ArrayBuffer> {
  const to = new GrammarBuilder();
  return to.finish(formatNode(to, source));
}

function formatNode(to: GrammarBuilder, source: FormatSource): Node {
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
        character: (points: Parameters<typeof utf8Node>[1]) => utf8Node(to, points),
        isSearch: false,
      };
      return patternNode(to, source.regex, options);
    }
  }
}

/** Maximum number of spaces and line breaks next to a tag. */
const MAX_SPACES = 8;

/** Returns a node that matches reasoning up to its end tag, then calls or text in a format. */
function answerNode(to: GrammarBuilder, source: FormatSource & { kind: 'answer' }): Node {
  const { reasoning, calls, format } = source.answer;
  const spaces = to.repeat(to.bytes([9, 10], [13, 13], [32, 32]), 0, MAX_SPACES);
  const text = format && formatNode(to, format);
  const afterReasoning = calls
    ? callsNode(to, calls, { text, spaces })
    : (text ?? textWithoutNode(to, null));
  if (!reasoning) return afterReasoning;
  const { begin, end } = reasoning;
  const thought = to.seq(textWithoutNode(to, end), to.text(end), spaces);
  if (begin === null) return to.seq(thought, afterReasoning);
  return to.seq(to.optional(to.seq(spaces, to.text(begin), thought)), afterReasoning);
}

/**
 * Returns a node that matches calls within any text; with a format, calls or text in this format.
 */
function callsNode(
  to: GrammarBuilder,
  calls: AnswerCalls,
  { text, spaces }: { text: Node | null; spaces: Node },
): Node {
  const { begin, bare, isSingle } = calls;
  const call = callNode(to, calls, spaces);
  const marked = markedCallsNode(to, calls, { call, spaces });
  const onlyCalls = bare ? joinedCallsNode(to, { call, spaces, isSingle }) : null;
  const max = isSingle ? 1 : Number.POSITIVE_INFINITY;
  if (text !== null) {
    const several = to.repeat(to.seq(spaces, marked), 1, max);
    return to.any(text, several, ...(onlyCalls === null ? [] : [to.seq(spaces, onlyCalls)]));
  }
  const plain = textWithoutNode(to, begin, ...(calls.others ?? []));
  if (calls.closers) return closedCallsNode(to, calls.closers, { plain, marked, spaces, isSingle });
  const between = to.seq(to.repeat(to.seq(plain, marked), 0, max), plain);
  if (onlyCalls === null || !bare) return between;
  const first = to.all(plain, to.without(bareStartNode(to, bare)));
  // Parsers take an object after a call for the next call, so no text follows it.
  return to.any(
    to.seq(spaces, onlyCalls, spaces),
    to.seq(first, to.optional(to.seq(marked, spaces))),
  );
}

/**
 * Returns a node that matches text and calls; each call ends with a closing tag or with the answer.
 */
function closedCallsNode(
  to: GrammarBuilder,
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
function callNode(to: GrammarBuilder, { forms, tags, marker }: AnswerCalls, spaces: Node): Node {
  return to.any(
    ...forms.map(({ before, schema, fields, after }) => {
      const afterName =
        fields === undefined || !tags
          ? new SchemaCompiler(to, schema as Schema, marker).compile()
          : to.seq(fieldsNode(to, fields, tags, spaces), spaces);
      const head = typeof before === 'string' ? to.text(before) : to.texts(before);
      return to.seq(head, afterName, to.text(after));
    }),
  );
}

/** Returns a node that matches a marker and its calls. */
function markedCallsNode(
  to: GrammarBuilder,
  { begin, end, list, bare, isSingle }: AnswerCalls,
  { call, spaces }: { call: Node; spaces: Node },
): Node {
  if (bare) return to.seq(to.text(begin), spaces, joinedCallsNode(to, { call, spaces, isSingle }));
  if (list) {
    const nextCall = to.seq(spaces, to.text(','), spaces, call);
    const all = isSingle ? call : to.seq(call, to.star(nextCall));
    const gap = list.open === '' ? [] : [spaces, to.text(list.open)];
    return to.seq(to.text(begin), ...gap, spaces, all, spaces, to.text(list.close));
  }
  if (end === '') return to.seq(to.text(begin), spaces, call);
  return to.seq(to.text(begin), spaces, call, spaces, to.text(end));
}

/** Returns a node that matches calls separated by ";". */
function joinedCallsNode(
  to: GrammarBuilder,
  { call, spaces, isSingle }: { call: Node; spaces: Node; isSingle: boolean },
): Node {
  if (isSingle) return call;
  return to.seq(call, to.star(to.seq(spaces, to.text(';'), spaces, call)));
}

/**
 * Returns a node that matches texts that start like an object with the name of a function; parsers
 * take them for calls.
 */
function bareStartNode(to: GrammarBuilder, names: readonly string[]): Node {
  const space = to.star(to.bytes([9, 10], [13, 13], [32, 32]));
  const all = to.star(to.bytes([0, 255]));
  const key = to.seq(to.text('"name"'), space, to.text(':'), space);
  const quotedName = to.texts(names.map((name) => JSON.stringify(name)));
  return to.seq(space, to.text('{'), all, key, quotedName, all);
}

/**
 * Returns a node that matches texts without any of the tags. No suffix of a tag is a prefix of it,
 * so a tag after the text cannot begin within the text.
 */
function textWithoutNode(to: GrammarBuilder, ...tags: readonly (string | null)[]): Node {
  const all = to.star(to.bytes([0, 255]));
  const tagNames = tags.filter((tag) => tag !== null);
  if (tagNames.length === 0) return all;
  return to.without(to.seq(all, to.any(...tagNames.map((tag) => to.text(tag))), all));
}
