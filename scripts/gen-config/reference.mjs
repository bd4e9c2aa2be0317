// The reference of the configuration in Markdown: a table per section with key, type, default,
// meaning and status.
import {
  defaultText,
  isNullable,
  isSection,
  literal,
  remarks,
  resolve,
  schema,
  stagesText,
  typesOf,
  valuesOf,
} from './schema.mjs';

const INTRO = `# Configuration

The keys of \`ds_config.json\`: those of DeepSpeed 0.19.6, and \`seed\`. A file is JSON with comments and trailing commas: a
regular file of at most 8 MiB, nested at most 100 levels deep (a pipe such as \`/dev/stdin\` is refused).
For completion in an editor, let the file begin with

\`\`\`json
{ "$schema": "./node_modules/@ds/native/ds_config.schema.json" }
\`\`\`

The status of a key is one of

- **works**;
- **works on several ranks**, with \`offload_optimizer\`, or at the ZeRO stages named: elsewhere it has no effect;
- **no effect**: accepted, and answered with one notice that says why, unless it is off or the default;
- **not supported yet**: an error that names the key, unless it is off (\`false\`, \`null\`, \`"enabled": false\`,
  \`"device": "none"\`) or the default.

Where a type says \`"auto"\`, a [Trainer](trainer.md#the-command) fills the value, by the table of Hugging Face's.
`;

const STATUS = [
  ['dsUnsupported', 'not supported yet'],
  ['dsNoEffect', 'no effect'],
];

const cell = (text) => text.replaceAll('|', '\\|').replaceAll('\n', ' ');
const code = (text) => `\`${text}\``;

function typeText(node) {
  const parts = [];
  const values = valuesOf(node, true);
  if (values.length > 0) parts.push(...values.map((value) => code(literal(value))));
  else if (node.anyOf) parts.push(...node.anyOf.map((option) => typeText(resolve(option))));
  else parts.push(...typesOf(node).map((type) => namedType(type, node)));
  if (isNullable(node) && !values.includes(null)) parts.push(code('null'));
  if (node.dsAuto) parts.push(code('"auto"'));
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

/** `inherited` is the status of the section around the key; a section has that of all its keys. */
function statusText(node, inherited) {
  if (node.dsReplacedBy) return `deprecated: use \`${node.dsReplacedBy}\``;
  for (const [keyword, name] of STATUS) if (node[keyword]) return `${name}: ${node[keyword]}`;
  if (inherited) return inherited;
  if (node.properties) {
    const keys = Object.values(node.properties).map((key) => statusText(resolve(key), ''));
    const kinds = new Set(keys.map((status) => status.split(':')[0]));
    if (kinds.size === 1) return [...kinds][0];
  }
  const { dsNoEffectAlone: alone, dsNoEffectResident: resident, dsStages: stages, ...rest } = node;
  const where = [alone ? ['on several ranks'] : [], resident ? ['with offload_optimizer'] : []];
  const works = ['works', ...where.flat()].join(' ');
  if (node.properties) return works;
  const some = remarks(rest).map((remark) => remark.replace(/^"(\w+)"/, '`"$1"`'));
  return [stages ? `${works}, at ${stagesText(node)}` : works, ...some].join('; ');
}

function row(key, node, { path, inherited, needed }) {
  const place = [...path, key].join('.');
  const name =
    isSection(node) && !node.deprecated ? `[${code(key)}](#${anchor(place)})` : code(key);
  const other = (node.dsAlias ?? []).map((alias) => ` (also ${code(alias)})`).join('');
  const text = defaultText(node);
  const standard = needed ? 'required' : text && code(text);
  const cells = [
    name + other,
    typeText(node),
    standard,
    node.description,
    statusText(node, inherited),
  ];
  return `| ${cells.map(cell).join(' | ')} |`;
}

const anchor = (place) => place.toLowerCase().replaceAll('.', '').replaceAll(' ', '-');

function table(node, path, inherited) {
  const rows = Object.entries(node.properties)
    .map(([key, property]) => [key, resolve(property)])
    .map(([key, item]) =>
      row(key, item, { path, inherited, needed: (node.required ?? []).includes(key) }),
    );
  return [
    '| Key | Type | Default | Meaning | Status |',
    '| --- | --- | --- | --- | --- |',
    ...rows,
    '',
  ].join('\n');
}

function inheritedStatus(node) {
  return STATUS.find(([keyword]) => node[keyword])?.[1] ?? '';
}

/** The heading and tables of a section and of the sections inside it. */
function sectionText(node, path, outer) {
  const inherited = inheritedStatus(node) || outer;
  const note = remarks(node).map((remark) => `**${remark}.**`);
  const out = [`## ${path.join('.')}`, '', [node.description, ...note].join(' '), ''];
  if (node.oneOf) return [...out, alternatives(node, path)].join('\n');
  out.push(table(node, path, inherited));
  if (node.additionalProperties === true) out.push('Other keys are accepted here.', '');
  return [...out, ...inner(node, path, inherited)].join('\n');
}

function inner(node, path, inherited) {
  return Object.entries(node.properties)
    .map(([key, property]) => [key, resolve(property)])
    .filter(([, item]) => isSection(item) && !item.deprecated)
    .map(([key, item]) => sectionText(item, [...path, key], inherited));
}

/** A section whose keys depend on its type: the types, then the parameters of each kind. */
function alternatives({ oneOf }, path) {
  const kinds = new Map();
  const rows = oneOf.map(({ properties: { type, params } }) => {
    const names = kinds.get(params.$ref) ?? [];
    kinds.set(params.$ref, [...names, type.const]);
    const reason = type.dsUnsupportedValues?.[type.const];
    const status = reason ? `not supported yet: ${reason}` : 'works';
    return `| ${[code(literal(type.const)), type.description, status].map(cell).join(' | ')} |`;
  });
  const anyCase = oneOf[0].properties.type.dsAnyCase ? ' (in any case)' : '';
  const out = [`| \`type\`${anyCase} | Meaning | Status |`, '| --- | --- | --- |', ...rows, ''];
  for (const [$ref, names] of kinds) {
    const params = resolve({ $ref });
    if (!params.properties) continue;
    const title = names.map(code).join(', ');
    out.push(`### ${path.join('.')}.params of ${title}`, '', params.description, '');
    out.push(table(params, [...path, 'params'], ''));
  }
  return out.join('\n');
}

/** The text of docs/configuration.md. */
export function generateReference() {
  const top = '## Top level\n';
  const parts = [INTRO, top, table(schema, [], ''), ...inner(schema, [], '')];
  const head =
    '<!-- Generated by scripts/gen-config.mjs from lib/config/schema.json. Do not edit. -->';
  return `${[head, '', ...parts].join('\n').trimEnd()}\n`;
}
