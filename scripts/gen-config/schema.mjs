// Reads the schema for the generators of types, editor schema and reference.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');

/** The name of the target of a $ref, on the node that has it. */
const TARGET = Symbol('target');

/** Loads the schema in `file`; resolve() follows its references. */
export function loadSchema(file) {
  const schema = JSON.parse(readFileSync(join(root, file), 'utf8'));
  const visit = (node) => {
    if (typeof node !== 'object' || node === null) return;
    if (node.$ref) {
      const value = schema.$defs[node.$ref.slice('#/$defs/'.length)];
      Object.defineProperty(node, TARGET, { value });
    }
    for (const item of Object.values(node)) visit(item);
  };
  visit(schema);
  return schema;
}

/** `node` with its $ref followed; keywords next to the $ref win. */
export function resolve(node) {
  if (!node.$ref) return node;
  const { $ref, ...beside } = node;
  return { ...node[TARGET], ...beside };
}

/** The schema of values under user-defined names; null for an object with keys. */
function namedBy({ additionalProperties: others }) {
  return typeof others === 'object' ? others : null;
}

/** The keys of an object; NAME stands for user-defined names. */
export function keysOf(node) {
  return node.properties ?? { NAME: namedBy(node) };
}

/** Whether `node` describes an object with declared keys, alternatives or names. */
export function isSection(node) {
  return Boolean(node.properties || node.oneOf || namedBy(node));
}

/** The types of `node` as a list, without null. */
export function typesOf(node) {
  return [node.type ?? []].flat().filter((type) => type !== 'null');
}

export function isNullable(node) {
  return [node.type].flat().includes('null') || Boolean(node.enum?.includes(null));
}

/** The values of an enum or a constant; with `all`, also the ones that are not supported yet. */
export function valuesOf(node, all = false) {
  const values = node.enum ?? ('const' in node ? [node.const] : []);
  return all ? values : values.filter((value) => !(value in (node.dsUnsupportedValues ?? {})));
}

/** A value as a configuration file would hold it; large round numbers as 5e8. */
export function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(', ')}]`;
  if (typeof value !== 'number') return JSON.stringify(value);
  const short = value.toExponential().replace('e+', 'e');
  return Math.abs(value) >= 1e5 && short.length < String(value).length ? short : String(value);
}

/** Other ways to write its values. */
export function spellingsOf(node) {
  return Object.keys(node.dsSpellings ?? {});
}

/** The default as text; '' without a default, or for a section that is filled key by key. */
export function defaultText({ default: value }) {
  const isFilled = typeof value === 'object' && value !== null && !Array.isArray(value);
  return value === undefined || isFilled ? '' : literal(value);
}

/** "stage 1, 2 or 3": where a key acts. */
export function stagesText({ dsStages }) {
  return `stage ${dsStages.join(', ').replace(/, (\d)$/, ' or $1')}`;
}

/** Remarks about a key as sentences without full stop; empty for a key that works. */
export function remarks(node) {
  const out = [];
  if (node.dsReplacedBy) out.push(`Deprecated: use ${node.dsReplacedBy}`);
  if (node.dsNoEffect) out.push(`No effect: ${node.dsNoEffect}`);
  if (node.dsNoEffectAlone) out.push(`No effect on one rank: ${node.dsNoEffectAlone}`);
  if (node.dsNoEffectResident)
    out.push(`No effect without offload_optimizer: ${node.dsNoEffectResident}`);
  if (node.dsNoEffectOffDisk) out.push(`No effect while ${node.dsNoEffectOffDisk}`);
  if (node.dsStages) out.push(`Acts at ${stagesText(node)}`);
  if (node.dsUnsupported) out.push(`Not supported yet: ${node.dsUnsupported}`);
  for (const [value, reason] of Object.entries(node.dsUnsupportedValues ?? {})) {
    const written = typesOf(node).includes('boolean') ? value : JSON.stringify(value);
    out.push(`${written} is not supported yet: ${reason}`);
  }
  return out;
}
