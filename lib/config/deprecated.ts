// Renames deprecated and alternative keys to the current keys.
import { required } from '../runtime/required.js';
import { coerceValue } from './coerce.js';
import type { Draft } from './draft.js';
import { dottedPath, type Path } from './parse.js';
import { isSection, propertyOf, resolveSchema, type Schema, type Section } from './schema.js';

/** Converts the value of an old key for the new key; undefined drops it. */
type Transform = (value: unknown) => unknown;

const toDevice: Transform = (value) => (value === true ? { device: 'cpu' } : undefined);

/** Conversions by the old path; other deprecated keys keep their value. */
const TRANSFORMS = new Map<string, Transform>([
  ['zero_optimization.cpu_offload', toDevice],
  ['zero_optimization.cpu_offload_param', toDevice],
]);

/** Deprecated keys that DeepSpeed reads without using them. */
const IGNORED = ['zero_optimization.cpu_offload_use_pin_memory'];

/**
 * Renames deprecated keys (with a notice) and aliases (without a notice) in `draft`. The old and
 * the new name together are an error, as in DeepSpeed.
 */
export function renameKeys(draft: Draft): void {
  expandStageSwitch(draft);
  const enter = (section: Section, schema: Schema, path: Path): void => {
    renameAliases(draft, section, schema, path);
    expandSwitches(section, schema);
    for (const key of Object.keys(section)) {
      const property = propertyOf(schema, key);
      if (!property) continue;
      const resolved = resolveSchema(property, section[key]);
      if (resolved.deprecated) replaceDeprecated(draft, { section, path, key, schema: resolved });
      const item = section[key];
      if (isSection(item)) enter(item, resolveSchema(property, item), [...path, key]);
    }
  };
  enter(draft.value, draft.schema, []);
}

/**
 * Expands `zero_optimization: true` to stage 1, false to stage 0. The bucket size of such a file is
 * `allgather_size`, at its top level.
 */
function expandStageSwitch(draft: Draft): void {
  const { value } = draft;
  if (typeof value.zero_optimization !== 'boolean') return;
  const stage = value.zero_optimization ? 1 : 0;
  const zero: Section = { stage };
  if ('allgather_size' in value) {
    zero.allgather_bucket_size = value.allgather_size;
    draft.noteMove(['allgather_size'], ['zero_optimization', 'allgather_bucket_size']);
    delete value.allgather_size;
  }
  value.zero_optimization = zero;
  const text = `is deprecated as a boolean: read as { "stage": ${stage} }.`;
  draft.note('deprecated', ['zero_optimization'], text);
}

/** Expands true or false in place of a section to the section with its switch. */
function expandSwitches(section: Section, { properties = {} }: Schema): void {
  for (const [name, { dsSwitch }] of Object.entries(properties)) {
    const value = section[name];
    if (dsSwitch && typeof value === 'boolean') section[name] = { [dsSwitch]: value };
  }
}

function renameAliases(draft: Draft, section: Section, schema: Schema, path: Path): void {
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    for (const alias of property.dsAlias ?? []) {
      if (!Object.hasOwn(section, alias)) continue;
      if (Object.hasOwn(section, name)) {
        refuseBoth(draft, [...path, alias], [...path, name]);
      } else {
        draft.noteMove([...path, alias], [...path, name]);
        section[name] = section[alias];
      }
      delete section[alias];
    }
  }
}

interface Deprecated {
  section: Section;
  /** Path of the section. */
  path: Path;
  key: string;
  schema: Schema;
}

function replaceDeprecated(draft: Draft, { section, path, key, schema }: Deprecated): void {
  const from = [...path, key];
  const to = schema.dsReplacedBy ? target(draft, schema.dsReplacedBy, path) : null;
  const transform = TRANSFORMS.get(dottedPath(from));
  const old = coerceValue(section[key], schema);
  const value = transform ? transform(old) : old;
  delete section[key];
  if (!to || IGNORED.includes(dottedPath(from))) {
    const instead = schema.dsReplacedBy ? `: use ${schema.dsReplacedBy}` : '';
    draft.note('deprecated', from, `is deprecated and has no effect${instead}.`);
    return;
  }
  const [holder, name] = sectionAt(draft.value, to);
  if (holder && Object.hasOwn(holder, name)) {
    refuseBoth(draft, from, to);
    return;
  }
  const as = transform && value !== undefined ? `: ${JSON.stringify(value)}` : '';
  const instead = value === undefined ? 'leave it out' : `write ${dottedPath(to)}${as}`;
  draft.note('deprecated', from, `is deprecated: ${instead}.`);
  if (!holder || value === undefined) return;
  holder[name] = value;
  draft.noteMove(from, to);
}

/** Returns a path from the top of the file, or from the section that holds the old key. */
function target(draft: Draft, path: string, section: Path): Path {
  const parts = path.split('.');
  return propertyOf(draft.schema, required(parts[0])) ? parts : [...section, ...parts];
}

/**
 * Returns the section of the last key of `path`, created if missing; null if a part of `path` is a
 * value.
 */
function sectionAt(root: Section, path: Path): [holder: Section | null, name: string] {
  let section = root;
  for (const key of path.slice(0, -1)) {
    section[key] ??= {};
    const next = section[key];
    if (!isSection(next)) return [null, String(path.at(-1))];
    section = next;
  }
  return [section, String(path.at(-1))];
}

function refuseBoth(draft: Draft, old: Path, current: Path): void {
  draft.refuse(old, {
    expected: `${dottedPath(current)} or its other name, not both`,
    got: 'both',
    hint: `Keep ${dottedPath(current)}.`,
  });
}
