// Compiles a format to the description of its grammar. Runs in a worker.
import { utf8 } from './characters.js';
import { Description, type Node } from './description.js';
import { ebnfNode } from './ebnf.js';
import type { FormatSource } from './format.js';
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

/** Most spaces and line ends beside a tag. */
const MOST_SPACES = 8;

/** Reasoning up to its end tag, then calls or the text of a format. */
function answerNode(to: Description, source: FormatSource & { kind: 'answer' }): Node {
  const { reasoning, calls, format } = source.answer;
  const spaces = to.repeat(to.bytes([9, 10], [13, 13], [32, 32]), 0, MOST_SPACES);
  const text = format && nodeOf(to, format);
  const rest = calls ? callsNode(to, calls, { text, spaces }) : (text ?? textWithout(to, null));
  if (!reasoning) return rest;
  const { begin, end } = reasoning;
  const thought = to.seq(textWithout(to, end), to.text(end), spaces);
  if (begin === null) return to.seq(thought, rest);
  return to.seq(to.optional(to.seq(spaces, to.text(begin), thought)), rest);
}

type Calls = NonNullable<(FormatSource & { kind: 'answer' })['answer']['calls']>;

/** Calls within any text; with a format, calls in place of its text. */
function callsNode(
  to: Description,
  { begin, end, schema, isSingle }: Calls,
  { text, spaces }: { text: Node | null; spaces: Node },
): Node {
  const json = new SchemaCompiler(to, schema as Schema).compile();
  const call = to.seq(to.text(begin), spaces, json, spaces, to.text(end));
  const most = isSingle ? 1 : Number.POSITIVE_INFINITY;
  if (text !== null) return to.any(text, to.repeat(to.seq(spaces, call), 1, most));
  const plain = textWithout(to, begin);
  return to.seq(to.repeat(to.seq(plain, call), 0, most), plain);
}

/** Bytes without `tag`. No tag begins with an end of its own, so a tag after them ends them. */
function textWithout(to: Description, tag: string | null): Node {
  const all = to.star(to.bytes([0, 255]));
  return tag === null ? all : to.without(to.seq(all, to.text(tag), all));
}
