// Generates the configuration reference in Markdown: a table per section with key, type, default,
// meaning and status.
import {
  defaultText,
  isNullable,
  isSection,
  keysOf,
  literal,
  remarks,
  resolve,
  stagesText,
  typesOf,
  valuesOf,
} from './schema.mjs';

const STATUS = [
  ['dsUnsupported', 'not supported yet'],
  ['dsNoEffect', 'no effect'],
];

/** No line of a page is longer, in columns, except table rows. */
const WIDTH = 120;
/** No table cell is longer, in characters. */
const LONGEST_CELL = 120;

/** `text` in lines of at most WIDTH columns. */
function wrapped(text) {
  const lines = [''];
  for (const word of text.split(' ')) {
    const line = [lines.at(-1), word].filter(Boolean).join(' ');
    if (line.length <= WIDTH) lines[lines.length - 1] = line;
    else lines.push(word);
  }
  return lines.join('\n');
}

/** `text` with links to the pages that it names, such as docs/offload.md. */
const linked = (text) => text.replace(/\bdocs\/([\w-]+)\.md\b/g, '[$1]($1.md)');

const cell = (text) => linked(text.replaceAll('|', '\\|').replaceAll('\n', ' '));
const code = (text) => `\`${text}\``;

function typeText(node) {
  const parts = [];
  const values = valuesOf(node, true);
  if (values.length > 0) parts.push(...values.map((value) => code(literal(value))));
  else if (node.anyOf) parts.push(...node.anyOf.map((option) => typeText(resolve(option))));
  else parts.push(...typesOf(node).map((type) => namedType(type, node)));
  if (isNullable(node) && !values.includes(null)) parts.push(code('null'));
  if (node.dsAuto) parts.push(code('"auto"'));
  if (node.dsSwitch) parts.push('boolean');
  return parts.join(', ');
}

function namedType(type, node) {
  if (type === 'object') return 'section';
  if (type !== 'array') return `${type}${range(node)}`;
  const item = typeText(resolve(node.items));
  return node.minItems ? `${node.minItems} × ${item}` : `list of ${item}`;
}

function range({ minimum, exclusiveMinimum, maximum, exclusiveMaximum }) {
  const bounds = [
    ['≥', minimum],
    ['>', exclusiveMinimum],
    ['≤', maximum],
    ['<', exclusiveMaximum],
  ].filter(([, bound]) => bound !== undefined);
  return bounds.map(([sign, bound]) => ` ${sign} ${literal(bound)}`).join(',');
}

/** The status of a key; a section has that of all its keys. */
function statusText(node) {
  if (node.dsReplacedBy) return `deprecated: use \`${node.dsReplacedBy}\``;
  for (const [keyword, name] of STATUS) if (node[keyword]) return `${name}: ${node[keyword]}`;
  if (node.properties) {
    const keys = Object.values(node.properties).map((key) => statusText(resolve(key)));
    const kinds = new Set(keys.map((status) => status.split(':')[0]));
    if (kinds.size === 1) return [...kinds][0];
  }
  const { dsNoEffectAlone: alone, dsNoEffectResident: resident, ...others } = node;
  const { dsNoEffectOffDisk: offDisk, dsStages: stages, ...rest } = others;
  const where = [
    alone ? ['on several ranks'] : [],
    resident ? ['with offload_optimizer'] : [],
    offDisk ? ['on nvme'] : [],
  ];
  const works = ['works', ...where.flat()].join(' ');
  if (node.properties) return works;
  const some = remarks(rest).map((remark) => remark.replace(/^("\w+"|true)/, '`$1`'));
  return [stages ? `${works}, at ${stagesText(node)}` : works, ...some].join('; ');
}

function row(key, node, { path, needed }) {
  const place = [...path, key].join('.');
  const name =
    isSection(node) && !node.deprecated ? `[${code(key)}](#${anchor(place)})` : code(key);
  const other = (node.dsAlias ?? []).map((alias) => ` (also ${code(alias)})`).join('');
  const text = defaultText(node);
  const standard = needed ? 'required' : text && code(text);
  const type = typeText(node);
  const status = statusText(node);
  return [
    name + other,
    type.length > LONGEST_CELL ? 'see below' : type,
    standard,
    node.description,
    status === 'works' ? '' : status,
  ];
}

/** A table without its last column if that is empty. */
function tableOf(head, rows) {
  const columns = rows.some((row) => row.at(-1) !== '') ? head.length : head.length - 1;
  const line = (cells) => `| ${cells.slice(0, columns).join(' | ')} |`.replaceAll('|  |', '| |');
  return [line(head), line(head.map(() => '---')), ...rows.map((row) => line(row.map(cell)))];
}

/** The types that are too long for a cell, as paragraphs. */
function longTypes(node) {
  return Object.entries(keysOf(node))
    .map(([key, property]) => [key, typeText(resolve(property))])
    .filter(([, type]) => type.length > LONGEST_CELL)
    .flatMap(([key, type]) => [wrapped(`${code(key)}: ${type}.`), '']);
}

const anchor = (place) => place.toLowerCase().replaceAll('.', '').replaceAll(' ', '-');

function table(node, path) {
  const rows = Object.entries(keysOf(node))
    .map(([key, property]) => [key, resolve(property)])
    .map(([key, item]) => row(key, item, { path, needed: (node.required ?? []).includes(key) }));
  const head = ['Key', 'Type', 'Default', 'Meaning', 'Status'];
  return [...tableOf(head, rows), '', ...longTypes(node)].join('\n');
}

/** The keys of a section that has no effect, and of the sections inside it. */
function keyNames(node, path = []) {
  return Object.entries(keysOf(node)).flatMap(([key, property]) => {
    const item = resolve(property);
    const place = [...path, key];
    return isSection(item) ? keyNames(item, place) : [code(place.join('.'))];
  });
}

function inheritedStatus(node) {
  return STATUS.find(([keyword]) => node[keyword])?.[1] ?? '';
}

/** The heading and tables of a section and of the sections inside it. */
function sectionText(node, path) {
  const inherited = inheritedStatus(node);
  const note = remarks(node).map((remark) => `**${remark}.**`);
  const text = wrapped(linked([node.description, ...note].join(' ')));
  const out = [`## ${path.join('.')}`, '', text, ''];
  if (node.oneOf) return [...out, alternatives(node, path)].join('\n');
  if (inherited) {
    const names = keyNames(node);
    return [...out, ...(names.length > 0 ? [wrapped(`Keys: ${names.join(', ')}.`), ''] : [])].join(
      '\n',
    );
  }
  out.push(table(node, path));
  if (node.additionalProperties === true) out.push('Other keys are accepted here.', '');
  return [...out, ...inner(node, path)].join('\n');
}

function inner(node, path) {
  return Object.entries(keysOf(node))
    .map(([key, property]) => [key, resolve(property)])
    .filter(([, item]) => isSection(item) && !item.deprecated)
    .map(([key, item]) => sectionText(item, [...path, key]));
}

/** A section with keys that depend on its type: the types, then the parameters of each kind. */
function alternatives({ oneOf }, path) {
  const kinds = new Map();
  const rows = oneOf.map(({ properties: { type, params } }) => {
    const { names } = kinds.get(params.$ref) ?? { names: [] };
    kinds.set(params.$ref, { params: resolve(params), names: [...names, type.const] });
    const reason = type.dsUnsupportedValues?.[type.const];
    const status = reason ? `not supported yet: ${reason}` : '';
    return [code(literal(type.const)), type.description, status];
  });
  const anyCase = oneOf[0].properties.type.dsAnyCase ? ' (in any case)' : '';
  const out = [...tableOf([`\`type\`${anyCase}`, 'Meaning', 'Status'], rows), ''];
  for (const { params, names } of kinds.values()) {
    if (!params.properties) continue;
    const title = names.map(code).join(', ');
    out.push(`### ${path.join('.')}.params of ${title}`, '', linked(params.description), '');
    out.push(table(params, [...path, 'params']));
  }
  return out.join('\n');
}

/** The text of the page: `intro`, then the reference of the schema in `source`. */
export function generateReference({ schema, source, intro }) {
  const top = '## Top level\n';
  const parts = [intro, top, table(schema, []), ...inner(schema, [])];
  const head = `<!-- Generated by scripts/gen-config.mjs from ${source}. Do not edit. -->`;
  return `${[head, '', ...parts].join('\n').trimEnd()}\n`;
}
