// Keys that the schema does not have: ignored with a notice when they are off, else an error with a
// guess.
import { isDeepStrictEqual } from 'node:util';

import { DsError } from '../errors.js';
import type { ConfigDocument, Path } from './parse.js';
import { configSchema, isSection, resolveSchema, type Schema, type Section } from './schema.js';

/** Keys people look for in a place where they do not belong. */
const ELSEWHERE: Record<string, string> = {
  max_grad_norm: 'Clipping is set at the top of the file: "gradient_clipping".',
  bfloat16: 'The section is called "bf16".',
  cpu_offload: 'Write "offload_optimizer": { "device": "cpu" }.',
};

export interface Sifted {
  /** What is left: keys that the schema knows. */
  value: Section;
  errors: DsError[];
  notices: string[];
}

/** Sorts out the unknown keys of every section, and notes the known ones that have no effect. */
export function siftKeys(document: ConfigDocument): Sifted {
  const errors: DsError[] = [];
  const notices: string[] = [];
  const sift = (section: Section, schema: Schema, path: Path): Section => {
    const out: Section = {};
    for (const [key, item] of Object.entries(section)) {
      const here = [...path, key];
      const property = schema.properties?.[key];
      if (!property || property.deprecated) {
        if (schema.additionalProperties !== false) out[key] = item;
        else if (isOff(item)) notices.push(`${document.locate(here)} is ignored: it is off.`);
        else errors.push(unknownKey(document.locate(here), key, schema));
        continue;
      }
      const declared = resolveSchema(property, item);
      const refusal = refuse(document.locate(here), item, declared);
      if (refusal) errors.push(refusal);
      const reason = declared.dsNoEffect;
      if (reason && !isOff(item)) {
        notices.push(`${document.locate(here)} has no effect: ${reason}.`);
      }
      out[key] = isSection(item) ? sift(item, declared, here) : item;
    }
    return out;
  };
  return { value: sift(document.value, configSchema, []), errors, notices };
}

/** The error of a key or a value that is not supported yet; null if it is off or the default. */
function refuse(place: string, item: unknown, schema: Schema): DsError | null {
  const values = schema.dsUnsupportedValues ?? {};
  const reason = schema.dsUnsupported ?? (typeof item === 'string' ? values[item] : undefined);
  if (!reason || isOff(item) || isDeepStrictEqual(item, schema.default)) return null;
  const good = (schema.enum ?? []).filter((value) => !(String(value) in values));
  return new DsError({
    code: 'DS_CONFIG',
    op: place,
    expected: good.map((value) => JSON.stringify(value)).join(', ') || 'that it is off',
    got: isSection(item) ? 'a section' : JSON.stringify(item),
    hint: `It is not supported yet: ${reason}.`,
  });
}

/** Off in every spelling: false, null, or a section that says enabled: false or device: "none". */
function isOff(value: unknown): boolean {
  if (isSection(value)) return value.enabled === false || value.device === 'none';
  return value === false || value === null;
}

function unknownKey(place: string, key: string, schema: Schema): DsError {
  const guess = closest(key, Object.keys(schema.properties ?? {}));
  const hint = ELSEWHERE[key] ?? (guess ? `Did you mean "${guess}"?` : '');
  return new DsError({
    code: 'DS_CONFIG',
    op: place,
    expected: 'a key that this version supports',
    got: `"${key}"`,
    hint: `${hint} It is not supported yet: remove it, or switch it off with false or null.`.trim(),
  });
}

/** The candidate within a third of the word's length in edits; "" when none is that close. */
export function closest(word: string, candidates: readonly string[]): string {
  let best = '';
  let least = Math.floor(word.length / 3) + 1;
  for (const candidate of candidates) {
    const distance = editDistance(word.toLowerCase(), candidate.toLowerCase());
    if (distance < least) [best, least] = [candidate, distance];
  }
  return best;
}

/** Insertions, deletions and substitutions from `a` to `b` (Levenshtein 1966). */
function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; ++i) {
    const next = [i];
    for (let j = 1; j <= b.length; ++j) {
      const replaced = (row[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[j] as number) + 1, (next[j - 1] as number) + 1));
    }
    row = next;
  }
  return row[b.length] as number;
}
