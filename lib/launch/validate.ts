// `ds validate`: checks a configuration without a model, a device or training.

import { ConfigError } from '../config/config-error.js';
import {
  type AutoSources,
  checkSearch,
  formatLocation,
  isPlanned,
  type Notice,
  type Origins,
  originLine,
} from '../config/index.js';
import type { SearchChoice } from '../config/search-choices.js';
import { readParallelSizes } from '../config/source.js';
import { required } from '../runtime/required.js';
import type { ValidateFlags } from './tool-options.js';

interface ValidateOptions extends Omit<ValidateFlags, 'auto'> {
  /** Values for "auto" keys. A Trainer fills the others, and the output lists them. */
  auto?: AutoSources;
}

export interface Validation {
  valid: boolean;
  /** The result: JSON, or the resolved configuration; "" if there is no result. */
  output: string;
  /** One line for each notice and error; empty with `json`, where the output contains them. */
  messages: readonly string[];
  /** One line: whether the file is valid, and the numbers of errors, warnings and notes. */
  summary: string;
}

/**
 * Resolves `file`. Reports all errors, or all notices and the result. Open "auto" values stay in
 * the result.
 */
export function validateFile(file: string, options: ValidateOptions): Validation {
  const { worldSize, auto, strict = false, json = false, explain = false } = options;
  const { ranks, error: rankError } = countDataRanks(file, worldSize);
  const report = checkSearch(file, { worldSize: ranks, auto, strict, autoLater: true });
  const { notices } = report;
  const errors = rankError ? [...report.errors, rankError] : report.errors;
  const config = rankError ? null : report.config;
  const valid = config !== null;
  const { notices: _lines, ...resolved } = config ?? { notices: [] };
  const openPaths = report.left ?? new Set<string>();
  const withAutoValues = restoreAuto(resolved, openPaths);
  const values = config ? addChoices(withAutoValues, report.choices) : withAutoValues;
  const origins = report.origins && addAutoOrigins(report.origins, openPaths);
  const summary = formatSummary(file, notices, errors);
  if (json) {
    const result = {
      valid,
      config: config && values,
      origins,
      notices: notices.map((notice) => ({
        kind: notice.kind,
        ...listFields(notice),
        text: notice.text,
      })),
      errors: errors.map((error) => {
        const { code, op, expected, got, hint } = error;
        return { code, op, ...listFields(error), expected, got, hint };
      }),
    };
    return { valid, output: JSON.stringify(result, null, 2), messages: [], summary: '' };
  }
  const messages = [
    ...notices.map((notice) => formatMessage(notice, chooseLabel(notice), notice.text)),
    ...errors.map((error) => {
      const { expected, got, hint } = error;
      return formatMessage(error, 'error', `expected ${expected}, got ${got}. ${hint}`.trim());
    }),
  ];
  if (!config) return { valid, output: '', messages, summary };
  if (!explain) return { valid, output: JSON.stringify(values, null, 2), messages, summary };
  const lines = Object.entries(origins ?? {}).map(([path, origin]) => {
    return `${path} = ${JSON.stringify(getValue(values, path))}  (${originLine(origin)})`;
  });
  return { valid, output: lines.join('\n'), messages, summary };
}

/**
 * Returns the number of data ranks after division by stages, layers and tokens, and the error for a
 * total that does not divide. Default: one rank.
 */
function countDataRanks(
  file: string,
  worldSize: number,
): { ranks: number; error: ConfigError | null } {
  const undivided = { ranks: worldSize, error: null };
  try {
    const { stages, layers, tokens } = readParallelSizes(file);
    const sharing = (stages ?? 1) * layers * tokens;
    const ranks = worldSize / sharing;
    if (Number.isInteger(ranks)) return { ranks, error: null };
    if (worldSize === 1) return undivided;
    const expected = `a multiple of ${sharing}, the ranks that share one model by this file`;
    const where = { file, location: null, path: '--world-size' };
    const error = new ConfigError({ ...where, expected, got: String(worldSize) });
    return { ranks: Math.ceil(ranks), error };
  } catch {
    return undivided; // The report lists the errors of the file.
  }
}

/** Returns a copy of `values` with "auto" at each path of `left`. */
function restoreAuto(values: object, left: ReadonlySet<string>): Record<string, unknown> {
  const copy = structuredClone(values) as Record<string, unknown>;
  for (const path of left) {
    const keys = path.split('.');
    const last = required(keys.pop());
    const section = keys.reduce((at, key) => at[key] as Record<string, unknown>, copy);
    section[last] = 'auto';
  }
  return copy;
}

/** Returns a copy of `values` with the lists of a search. */
function addChoices(values: Record<string, unknown>, choices: readonly SearchChoice[]) {
  const copy = structuredClone(values);
  for (const { path, values: list } of choices) {
    const [key, inner] = path;
    if (inner === undefined) copy[key] = list;
    else (copy[key] as Record<string, unknown>)[inner] = list;
  }
  return copy;
}

function addAutoOrigins(origins: Origins, left: ReadonlySet<string>): Origins {
  const autoOrigins = [...left].map((path) => {
    const of = isPlanned(path) ? 'left to the plan of initialize()' : 'left to a Trainer';
    return [path, { from: 'auto', of }] as const;
  });
  return { ...origins, ...Object.fromEntries(autoOrigins) };
}

/**
 * Formats a line as compilers do: "ds_config.json:12:5: error: zero_optimization.stage: expected
 * ...".
 */
function formatMessage(
  { file, location, path }: NoticeLocation,
  kind: string,
  text: string,
): string {
  const subject = kind === 'error' && path !== '' ? `${path}:` : path;
  const position = file ? `${formatLocation(file, location, '')}: ` : '';
  return `${position}${kind}: ${[subject, text].filter(Boolean).join(' ')}`;
}

type NoticeLocation = Pick<Notice, 'path' | 'file' | 'location'>;

function listFields({ path, file, location }: NoticeLocation) {
  return { path, file, line: location?.line ?? null, column: location?.column ?? null };
}

/** Formats "ds_config.json: invalid: 2 errors, 1 warning". */
function formatSummary(
  file: string,
  notices: readonly Notice[],
  errors: readonly ConfigError[],
): string {
  const labels = [...errors.map(() => 'error'), ...notices.map(chooseLabel)];
  const counts = ['error', 'warning', 'note'].flatMap((kind) => {
    const { length } = labels.filter((label) => label === kind);
    return length === 0 ? [] : [`${length} ${kind}${length === 1 ? '' : 's'}`];
  });
  const state = errors.length === 0 ? 'valid' : 'invalid';
  return [`${file}: ${state}`, ...(counts.length > 0 ? [counts.join(', ')] : [])].join(': ');
}

/**
 * Returns the label of a notice: unknown keys are likely mistakes; the other notices are
 * information.
 */
function chooseLabel({ kind }: Notice): string {
  return kind === 'unknown' || kind === 'advice' ? 'warning' : 'note';
}

function getValue(values: object, path: string): unknown {
  return path
    .split('.')
    .reduce<unknown>((section, key) => (section as Record<string, unknown>)[key], values);
}
