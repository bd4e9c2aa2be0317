// Builds nodes for arguments between tags, as Qwen3-Coder and GLM write them: strings as raw text,
// other values as JSON.
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { CallField, FieldTags } from '../../text/tool-calls/call-grammars.js';
import { ALL_CHARACTERS, utf8Node } from './characters.js';
import type { GrammarBuilder, Node } from './description.js';
import { patternNode } from './pattern.js';
import { SchemaCompiler } from './schema.js';
import { inexpressibleError, isAnnotation, type Schema } from './schema-merge.js';

/** Supported keywords of a string in raw text. */
const KNOWN = ['type', 'enum', 'const', 'minLength', 'maxLength', 'pattern'];
/** Maximum number of characters of a property name that is not in the schema. */
const MAX_NAME = 64;

/**
 * Returns a node that matches the fields of a call, in the order of the schema; null: any fields.
 * Throws DS_ARGUMENT with a path.
 */
export function fieldsNode(
  to: GrammarBuilder,
  fields: readonly CallField[] | null,
  { key, value }: FieldTags,
  spaces: Node,
): Node {
  // A value that starts on its own line has its end tag on its own line too.
  const gap = value[0].startsWith('<') ? spaces : to.epsilon;
  // Parsers also end a value at a tag within a line.
  const end = value[1].trim();
  const field = (name: Node, content: Node): Node =>
    to.seq(
      spaces,
      to.text(key[0]),
      name,
      to.text(key[1]),
      gap,
      to.text(value[0]),
      content,
      to.text(value[1]),
    );
  if (fields === null) {
    const letters = to.bytes([48, 57], [65, 90], [95, 95], [97, 122]);
    const name = to.repeat(letters, 1, MAX_NAME);
    return to.star(field(name, textWithout(to, end)));
  }
  return to.seq(
    ...fields.map(({ name, schema, isText, isRequired }) => {
      const path = `#/properties/${name}`;
      const content = isText
        ? rawText(to, schema as Keywords, { end, path })
        : new SchemaCompiler(to, schema as Schema).compile();
      const node = field(to.text(name), content);
      return isRequired ? node : to.optional(node);
    }),
  );
}

type Keywords = { readonly [keyword: string]: unknown };

/** Returns a node that matches a string in raw text. Parsers drop one line break at each end. */
function rawText(
  to: GrammarBuilder,
  { $defs: _, definitions: __, ...schema }: Keywords,
  { end, path }: { end: string; path: string },
): Node {
  for (const keyword of Object.keys(schema)) {
    if (KNOWN.includes(keyword) || isAnnotation(keyword)) continue;
    throw inexpressibleError(`${path}/${keyword}`, keyword, 'the value is a raw text');
  }
  const plain = textWithout(to, end);
  const { enum: listed, const: only, minLength = 0, maxLength, pattern } = schema;
  if (listed !== undefined || only !== undefined) {
    const values = only === undefined ? listed : [only];
    const texts = (Array.isArray(values) ? values : []).filter(
      (value) => typeof value === 'string',
    );
    if (texts.length > 0) return to.all(plain, to.texts(texts));
    throw argumentError(`format schema ${path}/enum`, 'a list with a string', formatValue(values));
  }
  const parts: Node[] = [plain];
  if (minLength !== 0 || maxLength !== undefined) {
    const max = typeof maxLength === 'number' ? maxLength : Number.POSITIVE_INFINITY;
    parts.push(to.repeat(utf8Node(to, ALL_CHARACTERS), Number(minLength), max));
  }
  if (pattern !== undefined) {
    const character = (points: Parameters<typeof utf8Node>[1]): Node => utf8Node(to, points);
    const options = { op: `format schema ${path}/pattern`, character, isSearch: true };
    parts.push(patternNode(to, String(pattern), options));
  }
  if (parts.length === 1) return plain;
  const [line, all] = [to.text('\n'), to.star(to.bytes([0, 255]))];
  return to.all(...parts, to.without(to.any(to.seq(line, all), to.seq(all, line))));
}

function textWithout(to: GrammarBuilder, tag: string): Node {
  const all = to.star(to.bytes([0, 255]));
  return to.without(to.seq(all, to.text(tag), all));
}
