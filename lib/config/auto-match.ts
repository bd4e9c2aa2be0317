// Hugging Face's must_match: refuses values of a configuration that differ from the training's
// arguments.
import { type AutoSources, rowOf, SUPPLIED } from './auto-table.js';
import { coerced } from './coerce.js';
import { type SourceLocation, shown } from './config-error.js';
import { byLocation, type Draft } from './draft.js';
import { dotted, type Path } from './parse.js';
import { isSection, type Section } from './schema.js';
import { stageOf } from './support.js';

/** A key with another value than its argument. */
interface Mismatch {
  path: Path;
  location: SourceLocation | null;
  /** "optimizer.params.lr at 12:5: expected 0.00005 (lr, --learning_rate), got 0.0002" */
  line: string;
}

/**
 * With `mustMatch`: refuses all values that differ from the training's in one error, and adds
 * missing values. The global batch size is compared if `worldSize` is given.
 */
export function matchTraining(draft: Draft, sources: AutoSources, worldSize?: number): void {
  if (!sources.mustMatch) return;
  const mismatches = findMismatches(draft, sources, worldSize);
  const [first] = mismatches;
  if (first) {
    const lines = mismatches.map(({ line }) => line).join('; ');
    draft.refuse(first.path, {
      expected: 'the values of the training',
      got: `${mismatches.length === 1 ? 'another' : `${mismatches.length} others`}: ${lines}`,
      hint: 'Write "auto" for these keys, or give the training the same values.',
    });
  } else {
    supply(draft, sources);
  }
}

function findMismatches(
  draft: Draft,
  sources: AutoSources,
  worldSize: number | undefined,
): Mismatch[] {
  const found: Mismatch[] = [];
  draft.visit(({ section, key, path, schema }) => {
    const row = rowOf(dotted(path), stageOf(draft));
    if (!row?.argument || section[key] === 'auto') return;
    const { training = {} } = sources;
    const isTotal = row.total !== undefined && worldSize !== undefined;
    const wanted = isTotal ? row.total?.(training, worldSize) : row.value(sources);
    const got = coerced(section[key], schema);
    if (wanted === undefined || JSON.stringify(got) === JSON.stringify(wanted)) return;
    const { path: name, location } = draft.where(path);
    const at = location ? ` at ${location.line}:${location.column}` : '';
    const line = `${name}${at}: expected ${shown(wanted)} (${row.argument}), got ${shown(section[key])}`;
    found.push({ path, location, line });
  });
  return found.toSorted(byLocation);
}

/** Puts in the training's batch sizes, clipping, and a precision that it switches on. */
function supply(draft: Draft, sources: AutoSources): void {
  for (const path of SUPPLIED) {
    const [first, key = first] = path;
    const section = path.length === 1 ? draft.value : sectionOf(draft, first);
    const row = rowOf(dotted(path), stageOf(draft));
    const value = row?.value(sources);
    const isNothing = value === undefined || value === false;
    if (!section || section[key] !== undefined || isNothing) continue;
    section[key] = value;
    if (path.length === 2) draft.value[first] = section;
    draft.made.set(dotted(path), { from: 'auto', of: row?.of ?? '' });
  }
}

/** The section of that name; a new one if it is missing, null if the value is not a section. */
function sectionOf({ value }: Draft, name: string): Section | null {
  const section = value[name] ?? {};
  return isSection(section) ? section : null;
}
