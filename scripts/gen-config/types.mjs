// Generates the TypeScript types of the configuration. In the user's form every key is optional. In
// the engine's form every key is present and read-only, with one name, without "auto".
import {
  defaultText,
  isNullable,
  remarks,
  resolve,
  spellingsOf,
  typesOf,
  valuesOf,
} from './schema.mjs';

const WIDTH = 100;
const PRIMITIVES = { integer: 'number', number: 'number', string: 'string', boolean: 'boolean' };
/** Keys without default that the engine always has: the batch triad. */
const TRIAD = /batch_size|accumulation_steps$/;

const quoted = (value) =>
  typeof value === 'string'
    ? `'${value.replaceAll("'", "\\'")}'`
    : value === null
      ? 'null'
      : String(value);

/** One of the two forms; collects the interfaces that its types name. */
class Form {
  declarations = new Map();

  constructor(schema, resolved) {
    this.schema = schema;
    this.resolved = resolved;
  }

  name(title) {
    if (!this.resolved) return title;
    if (title === this.schema.title) return this.schema.dsResolvedTitle;
    return `Resolved${title.replace(/Config$/, '')}`;
  }

  /** The type of a key's value. */
  typeOf(node) {
    const parts = this.parts(node);
    const isSection = typeof node.default === 'object' && node.default !== null;
    const isFilled = isSection || node.default === undefined;
    if (isNullable(node) && !(this.resolved && isFilled)) parts.push('null');
    if (node.dsAuto && !this.resolved) parts.push("'auto'");
    if (node.dsSwitch && !this.resolved) parts.push('boolean');
    return [...new Set(parts)].join(' | ');
  }

  parts(node) {
    const values = valuesOf(node).filter((value) => value !== null);
    if (values.length > 0) {
      const others = this.resolved ? [] : spellingsOf(node);
      const union = [...values, ...others].map(quoted).join(' | ');
      return [node.dsAnyCase && !this.resolved ? `AnyCase<${union}>` : union];
    }
    if (node.anyOf) return node.anyOf.map((option) => this.typeOf(resolve(option)));
    return typesOf(node).map((type) => {
      if (type === 'array') return this.array(node);
      return type === 'object' ? this.object(node) : PRIMITIVES[type];
    });
  }

  array({ items, minItems, maxItems }) {
    const type = this.typeOf(resolve(items));
    const item = /\||^readonly /.test(type) ? `(${type})` : type;
    const list =
      minItems && minItems === maxItems
        ? `[${Array(minItems).fill(item).join(', ')}]`
        : `${item}[]`;
    return `readonly ${list}`; // Accepts a configuration with `as const`.
  }

  object(node) {
    if (typeof node.additionalProperties === 'object') {
      const type = this.typeOf(resolve(node.additionalProperties));
      return `{ ${this.resolved ? 'readonly ' : ''}[name: string]: ${type} }`;
    }
    if (!node.title) return '{ [key: string]: unknown }';
    const name = this.name(node.title);
    if (!this.declarations.has(name)) {
      this.declarations.set(name, '');
      this.declarations.set(name, node.oneOf ? this.union(name, node) : this.interface(name, node));
    }
    return name;
  }

  union(name, { description, oneOf }) {
    const options = oneOf
      .filter((option) => valuesOf(option.properties.type).length > 0)
      .map((option) => `  | {\n${this.members(option, '      ')}\n    }`);
    return `${comment([description], '')}export type ${name} =\n${options.join('\n')};\n`;
  }

  interface(name, node) {
    const index = node.additionalProperties === true ? '\n  [key: string]: unknown;' : '';
    const head = comment([node.description, ...remarks(node)], '');
    return `${head}export interface ${name} {\n${this.members(node, '  ')}${index}\n}\n`;
  }

  members({ properties = {}, required = [] }, indent) {
    const needed = [
      ...required,
      ...(properties.type && !('default' in properties.type) ? ['type'] : []),
    ];
    const lines = [];
    for (const [key, property] of Object.entries(properties)) {
      const node = resolve(property);
      if (this.resolved && (node.deprecated || key === '$schema')) continue;
      this.checkDefault(key, node, needed);
      const type = this.typeOf(node);
      lines.push(this.member(key, type, node, { indent, needed: needed.includes(key) }));
      if (this.resolved) continue;
      for (const alias of node.dsAlias ?? []) {
        lines.push(`${indent}/** Another name of ${key}. */\n${indent}${alias}?: ${type};`);
      }
    }
    return lines.join('\n');
  }

  /** A required key needs a default. */
  checkDefault(key, node, needed) {
    const known = needed.includes(key) || TRIAD.test(key) || node.default !== undefined;
    if (this.resolved && !known) throw new Error(`schema.json: "${key}" has no default`);
  }

  member(key, type, node, { indent, needed }) {
    const text = defaultText(node);
    const words = [node.description, ...(text && !this.resolved ? [`Default ${text}`] : [])];
    words.push(...remarks(node).filter((remark) => !remark.startsWith('Deprecated')));
    const tags = node.dsReplacedBy ? [`@deprecated Use ${node.dsReplacedBy}.`] : [];
    const head = comment(words, indent, tags);
    const field = this.resolved ? `readonly ${key}` : needed ? key : `${key}?`;
    return `${head}${indent}${field}: ${type};`;
  }
}

/** Sentences as a JSDoc comment that fits the width; each is closed by a full stop. */
function comment(sentences, indent, tags = []) {
  const text = sentences
    .filter(Boolean)
    .map((sentence) => sentence.replace(/\.?$/, '.'))
    .join(' ');
  if (tags.length === 0 && indent.length + text.length + 7 <= WIDTH) {
    return `${indent}/** ${text} */\n`;
  }
  const lines = [text, ...tags].flatMap((paragraph) => wrap(paragraph, WIDTH - indent.length - 3));
  return `${indent}/**\n${lines.map((line) => `${indent} * ${line}`).join('\n')}\n${indent} */\n`;
}

function wrap(text, width) {
  const lines = [];
  for (const word of text.split(' ')) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 1 + word.length <= width)
      lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** The text of the declarations, generated from the schema in `source`. */
export function generateTypes({ schema, source }) {
  const forms = [new Form(schema, false), new Form(schema, true)];
  for (const form of forms) form.object(schema);
  const declarations = forms.flatMap((form) => [...form.declarations.values()]);
  const anyCase = [
    '/** A name as it is documented, or all in lower or upper case. */',
    'export type AnyCase<Name extends string> = Name | Lowercase<Name> | Uppercase<Name>;',
    '',
  ];
  return [
    `// Generated by scripts/gen-config.mjs from ${source}. Do not edit.`,
    '',
    ...(declarations.some((text) => text.includes('AnyCase<')) ? anyCase : []),
    ...declarations,
  ].join('\n');
}
