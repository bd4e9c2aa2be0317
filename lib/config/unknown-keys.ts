// Keys that the schema does not have: left out with a notice and a guess, or refused under
// `strict`.

import { closest } from '../runtime/suggestion.js';
import { refuseAccelerate } from './accelerate.js';
import type { Draft } from './draft.js';
import { dotted, type Path } from './parse.js';
import { declared, isSection, resolveSchema, type Schema, type Section } from './schema.js';

/** Hints for keys of older versions and of wrong pages. */
const KNOWN_MISTAKES = new Map([
  ['max_grad_norm', 'Did you mean "gradient_clipping"?'],
  [
    'optimizer.params.max_grad_norm',
    'Clipping is set at the top of the file: "gradient_clipping".',
  ],
  ['zero_optimization.offload_optimizer.buffer_size', 'DeepSpeed no longer has it.'],
]);

/**
 * Number of unknown keys per file with a suggestion; the others are only named.
 */
const MAX_GUESSES = 100;

/** Takes the unknown keys out of every section of `draft`. */
export function siftKeys(draft: Draft, strict: boolean): void {
  refuseAccelerate(draft);
  siftSection(draft, draft.value, { schema: draft.schema, path: [], strict });
  draft.visit(({ section, key, path, schema }) => {
    const item = section[key];
    if (!isSection(item)) return;
    siftSection(draft, item, { schema, path, strict: strict || isConstructed(draft, path) });
  });
}

/**
 * DeepSpeed passes these sections to a constructor, which refuses unknown keys. Muon's constructor
 * ignores them.
 */
function isConstructed(draft: Draft, path: Path): boolean {
  const name = dotted(path);
  if (name === 'scheduler.params') return true;
  const { optimizer } = draft.value;
  return name === 'optimizer.params' && isSection(optimizer) && optimizer.type !== 'Muon';
}

interface Rules {
  schema: Schema;
  path: Path;
  strict: boolean;
}

function siftSection(draft: Draft, section: Section, { schema, path, strict }: Rules): void {
  if (schema.additionalProperties !== false) return;
  for (const key of Object.keys(section)) {
    if (declared(schema, key)) continue;
    const here = [...path, key];
    const hint = hintFor(draft, here, schema);
    if (strict || dotted(here) === 'optimizer.params.max_grad_norm') {
      const expected = path.length > 0 ? `a key of ${dotted(path)}` : 'a key of this file';
      draft.refuse(here, { expected, got: `"${key}", which is unknown`, hint });
    } else {
      draft.note('unknown', here, `is unknown and ignored. ${hint}`.trim());
    }
    delete section[key];
  }
}

function hintFor(draft: Draft, path: Path, schema: Schema): string {
  const known = KNOWN_MISTAKES.get(dotted(path));
  if (known) return known;
  if (draft.errors.length + draft.notices.length >= MAX_GUESSES) return '';
  const key = String(path.at(-1));
  const { params } = schema.properties ?? {};
  if (params && declared(resolveSchema(params, undefined), key)) {
    return `Did you mean "${dotted([...path.slice(0, -1), 'params', key])}"?`;
  }
  const bare = key.replace(/^stage3_/, '');
  const guess = declared(schema, bare) ? bare : closest(key, namesIn(schema));
  if (guess) return `Did you mean "${guess}"?`;
  const elsewhere = sectionsWith(key, draft.schema);
  return elsewhere.length === 1 ? `Did you mean "${elsewhere[0]}"?` : '';
}

/** Keys of a section under all of their names. */
function namesIn({ properties = {} }: Schema): string[] {
  return Object.entries(properties).flatMap(([key, { dsAlias = [] }]) => [key, ...dsAlias]);
}

/** Returns the dotted paths of the keys with this name. */
function sectionsWith(key: string, schema: Schema): readonly string[] {
  let paths = pathsByKey.get(schema);
  if (!paths) {
    paths = new Map();
    collectPaths(schema, [], paths);
    pathsByKey.set(schema, paths);
  }
  return paths.get(key) ?? [];
}

/** By schema: the dotted paths of every key's name. */
const pathsByKey = new WeakMap<Schema, Map<string, string[]>>();

function collectPaths(schema: Schema, path: Path, paths: Map<string, string[]>): void {
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    const here = [...path, name];
    paths.set(name, [...(paths.get(name) ?? []), dotted(here)]);
    collectPaths(resolveSchema(property, undefined), here, paths);
  }
}
