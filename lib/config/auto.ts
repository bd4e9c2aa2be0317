// "auto": filled in from the model and the training arguments, as Hugging Face's Trainer fills it.
import type { DsConfig } from '../../types/config.js';
import { formatLines } from '../errors.js';
import { valueError } from '../runtime/input-errors.js';
import {
  type AutoRow,
  type AutoSources,
  isOfStage,
  isPlanned,
  rowOf,
  SUPPLIED,
} from './auto-table.js';
import { canonicalOptimizer, coerceValue } from './coerce.js';
import { formatConfigValue, type SourceLocation } from './config-error.js';
import { renameKeys } from './deprecated.js';
import { compareLocations, Draft } from './draft.js';
import { dottedPath, type Path, readDocument } from './parse.js';
import { plannedKeys } from './planned-keys.js';
import { isSection, lists, type Schema, type Section } from './schema.js';
import { stageOf } from './support.js';
import { dropNullSizes } from './triad.js';

export type { AutoSources } from './auto-table.js';

/**
 * Values in place of "auto" for required keys, for a check of a configuration before a Trainer
 * fills it.
 */
const STAND_INS: Partial<Record<string, number>> = {
  train_micro_batch_size_per_gpu: 1,
  'scheduler.params.total_num_steps': Number.MAX_SAFE_INTEGER,
};

const BATCH = ['train_batch_size', 'train_micro_batch_size_per_gpu', 'gradient_accumulation_steps'];

/**
 * Sections and keys in which "auto" means "not given": DeepSpeed ignores it there, and accelerate
 * overwrites steps_per_print.
 */
const DROPS_AUTO = [
  'amp',
  'bf16',
  'comet',
  'comms_logger',
  'compile',
  'csv_monitor',
  'fp16',
  'hybrid_engine',
  'steps_per_print',
  'tensor_parallel',
  'tensorboard',
  'timers',
  'wandb',
  'weight_quantization',
  'zero_optimization',
];

/**
 * Returns `config` with the "auto" values of Hugging Face filled from `sources`. In some sections,
 * DeepSpeed ignores a key with "auto"; these keys are removed. initialize() fills keys of the plan.
 * Throws one DS_CONFIG that names all remaining "auto" values, or the first other error.
 */
export function resolveAuto(config: string | DsConfig, sources: AutoSources): DsConfig {
  if (typeof sources !== 'object' || sources === null) {
    throw valueError(
      'resolveAuto',
      'an object with the values that fill "auto"',
      sources,
      'Pass for example { model: { hiddenSize }, training: { lr: 1e-5 } }.',
    );
  }
  const draft = new Draft(readDocument(config));
  dropNullSizes(draft.value);
  canonicalOptimizer(draft);
  renameKeys(draft);
  plannedKeys(draft);
  fillAuto(draft, sources);
  const [first] = draft.errors;
  if (first) throw first;
  return draft.value as DsConfig;
}

/** An "auto" without a value: its source was not given, or it has none. */
interface Unfilled {
  path: Path;
  filler: AutoRow | undefined;
}

/** Fills from `sources`; refuses remaining "auto" values, and with `worldSize` mismatches. */
export function fillAuto(draft: Draft, sources: AutoSources, worldSize?: number): void {
  refuseUnfilled(draft, fill(draft, sources, false));
  matchTraining(draft, sources, worldSize);
}

/**
 * Fills from `sources` and leaves the rest to a Trainer: each remaining "auto" gets a notice, and
 * the key's default or a placeholder. Refuses "auto" for keys that a Trainer does not fill. Returns
 * the dotted paths of the remaining keys.
 */
export function fillKnownAuto(
  draft: Draft,
  sources: AutoSources,
  worldSize: number,
): ReadonlySet<string> {
  const unfilled = fill(draft, sources, true);
  refuseUnfilled(
    draft,
    unfilled.filter(({ filler }) => !filler),
  );
  const left = new Set<string>();
  for (const { path, filler } of unfilled) {
    if (!filler) continue;
    left.add(dottedPath(path));
    leaveOut(draft, path);
    draft.note('auto', path, `is left to be filled from ${filler.of}.`);
  }
  matchTraining(draft, sources, worldSize);
  const sizes = BATCH.slice(0, 2);
  const isOpen = BATCH.some((key) => left.has(key));
  if (isOpen && sizes.every((key) => draft.value[key] === undefined)) {
    draft.value.train_micro_batch_size_per_gpu = STAND_INS.train_micro_batch_size_per_gpu;
  }
  return left;
}

function leaveOut({ value }: Draft, path: Path): void {
  const section = path.slice(0, -1).reduce<Section>((at, key) => at[key] as Section, value);
  const key = String(path.at(-1));
  const name = dottedPath(path);
  if (name in STAND_INS && !BATCH.includes(name)) section[key] = STAND_INS[name];
  else delete section[key];
}

/**
 * Fills "auto" values. Removes an "auto" that means "not given", unless a Trainer fills the key
 * `later`. Returns the keys that stay unfilled. Keys of the plan, and keys that depend on a planned
 * stage, stay "auto" and are not returned.
 */
function fill(draft: Draft, sources: AutoSources, later: boolean): Unfilled[] {
  const unfilled: Unfilled[] = [];
  fillBatch(draft, sources);
  draft.visit(({ section, key, path, schema }) => {
    if (section[key] !== 'auto' || hasOwnMeaning(schema)) return;
    if (isPlanned(dottedPath(path)) || (stageOf(draft) === 'auto' && isOfStage(dottedPath(path))))
      return;
    const filler = rowOf(dottedPath(path), stageOf(draft));
    const value = filler?.value(sources);
    if (filler && value !== undefined) {
      section[key] = structuredClone(value);
      draft.filled.set(dottedPath(path), { from: 'auto', of: filler.of });
    } else if (DROPS_AUTO.includes(String(path[0])) && !(later && filler)) {
      delete section[key];
      draft.note('auto', path, 'is "auto": the default applies.');
    } else {
      unfilled.push({ path, filler });
    }
  });
  return unfilled.filter(({ path }) => !removesDerived(draft, path));
}

/** Fills a global batch size without a micro-batch size from the samples of one device. */
function fillBatch({ value, filled }: Draft, { training: given }: AutoSources): void {
  const { train_batch_size: total, train_micro_batch_size_per_gpu: micro } = value;
  const samples = given?.perDeviceBatchSize;
  if (total !== 'auto' || micro !== undefined || samples === undefined) return;
  value.train_micro_batch_size_per_gpu = samples;
  filled.set('train_micro_batch_size_per_gpu', { from: 'auto', of: 'training.perDeviceBatchSize' });
}

/** Removes an "auto" batch size if other batch sizes determine it. Returns whether it did. */
function removesDerived({ value }: Draft, path: Path): boolean {
  const sizes = [value.train_batch_size, value.train_micro_batch_size_per_gpu];
  const key = dottedPath(path);
  if (!BATCH.includes(key) || sizes.every((size) => size === undefined || size === 'auto')) {
    return false;
  }
  delete value[key];
  return true;
}

/** Returns whether "auto" is a declared choice of a key, or the key accepts any text. */
function hasOwnMeaning(schema: Schema): boolean {
  return !schema.dsAuto && (lists(schema, 'auto') || schema.type === 'string');
}

function refuseUnfilled(draft: Draft, unfilled: readonly Unfilled[]): void {
  const [first] = unfilled;
  if (!first) return;
  const names = unfilled.map(({ path, filler }) => {
    const { path: name, location } = draft.where(path);
    const at = location ? ` at ${location.line}:${location.column}` : '';
    return `${name}${at} (${filler ? `needs ${filler.of}` : 'nothing fills it'})`;
  });
  draft.refuse(first.path, {
    expected: 'a value, or a source that fills "auto"',
    got: `"auto" in ${names.join(', ')}`,
    hint: 'Write values, or pass their sources: initialize({ auto }), ds validate --auto.',
  });
}

// Hugging Face's must_match: refuses values of a configuration that differ from the training's
// arguments.

/** A key whose value differs from the training's argument. */
interface Mismatch {
  path: Path;
  location: SourceLocation | null;
  /** "optimizer.params.lr at 12:5: expected 0.00005 (lr, --learning_rate), got 0.0002" */
  line: string;
}

/**
 * Does nothing without `mustMatch`. Throws one DS_CONFIG that lists all values which differ from
 * the training options. Adds values that the file lacks. Compares the global batch size only if the
 * caller gives `worldSize`.
 */
function matchTraining(draft: Draft, sources: AutoSources, worldSize?: number): void {
  if (!sources.mustMatch) return;
  const mismatches = findMismatches(draft, sources, worldSize);
  const [first] = mismatches;
  if (first) {
    const lines = mismatches.map(({ line }) => line);
    const [only] = lines;
    const isOne = lines.length === 1;
    draft.refuse(first.path, {
      expected: 'the values of the training options',
      got: isOne
        ? `a different value: ${only}`
        : `${lines.length} different values:${formatLines(lines)}`,
      hint: 'Write "auto" for these keys, or set the same values in both.',
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
  const mismatches: Mismatch[] = [];
  draft.visit(({ section, key, path, schema }) => {
    const row = rowOf(dottedPath(path), stageOf(draft));
    if (!row?.argument || section[key] === 'auto') return;
    const { training = {} } = sources;
    const isTotal = row.total !== undefined && worldSize !== undefined;
    const expected = isTotal ? row.total?.(training, worldSize) : row.value(sources);
    const got = coerceValue(section[key], schema);
    if (expected === undefined || JSON.stringify(got) === JSON.stringify(expected)) return;
    const { path: name, location } = draft.where(path);
    const at = location ? ` at ${location.line}:${location.column}` : '';
    const line = `${name}${at}: expected ${formatConfigValue(expected)} (${row.argument}), got ${formatConfigValue(section[key])}`;
    mismatches.push({ path, location, line });
  });
  return mismatches.toSorted(compareLocations);
}

/**
 * Adds the training's batch sizes, clipping, and enabled precision, where the configuration lacks
 * them.
 */
function supply(draft: Draft, sources: AutoSources): void {
  for (const path of SUPPLIED) {
    const [first, key = first] = path;
    const section = path.length === 1 ? draft.value : sectionOf(draft, first);
    const row = rowOf(dottedPath(path), stageOf(draft));
    const value = row?.value(sources);
    const isNothing = value === undefined || value === false;
    if (!section || section[key] !== undefined || isNothing) continue;
    section[key] = value;
    if (path.length === 2) draft.value[first] = section;
    draft.filled.set(dottedPath(path), { from: 'auto', of: row?.of ?? '' });
  }
}

/**
 * Returns the section of that name; a new one if it is missing, null if the value is not a section.
 */
function sectionOf({ value }: Draft, name: string): Section | null {
  const section = value[name] ?? {};
  return isSection(section) ? section : null;
}
