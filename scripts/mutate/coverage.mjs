// Finds which tests reach which mutants, by one run of each test file over instrumented sources.
import { join } from 'node:path';
import { runTests } from './run-tests.mjs';

/** All tests of a file: the mutant is reached while it is loaded, or by a hook. */
const WHOLE = '*';

/** Adds the log of one test file to `reached`, a map from mutant to names of tests. */
function addHits(log, reached) {
  let current = WHOLE;
  for (const { kind, text } of log) {
    if (kind === 'test') current = text;
    if (kind === 'hook') current = WHOLE;
    if (kind === 'hit' || kind === 'load') {
      if (!reached.has(text)) reached.set(text, new Set());
      reached.get(text).add(kind === 'load' ? WHOLE : current);
    }
  }
}

/** Seconds of every test of a file. */
function timesOf(log) {
  const times = new Map();
  let open;
  for (const { kind, time, text } of log) {
    if (kind === 'test') open = { name: text, time };
    if (kind === 'fail') open = undefined;
    if (kind === 'end' && open) {
      times.set(open.name, (time - open.time) / 1000);
      open = undefined;
    }
  }
  return times;
}

/**
 * Keeps only the tests that passed, for a file that takes too long or fails without a mutant.
 */
function endedOnly({ times, reached, ...rest }) {
  const ended = [...times.keys()];
  const named = [...reached].map(([id, names]) => {
    const all = names.has(WHOLE) ? ended : ended.filter((name) => names.has(name));
    return [id, new Set(all)];
  });
  return { ...rest, times, reached: new Map(named.filter(([, names]) => names.size > 0)) };
}

/**
 * `{ file, seconds, times, reached, isSound }` of a test file. A file without passing tests is left
 * out.
 */
export async function coverFile(tree, file, { ids, limit }) {
  const { code, seconds, log, output } = await runTests(tree, {
    files: [join(tree, file)],
    ids,
    limit,
  });
  const reached = new Map();
  addHits(log, reached);
  const failed = log.filter(({ kind }) => kind === 'fail').map(({ text }) => text);
  if (code !== 0 && failed.length === 0 && code !== null) failed.push(output.slice(-500));
  const times = timesOf(log);
  const isCut = code === null || failed.length > 0;
  const one = { file, seconds, times, reached, isSound: !isCut || times.size > 0, isCut, failed };
  return isCut ? endedOnly(one) : one;
}

const LOAD_SECONDS = 3;

/** Tests of a file that reach a mutant, by name or the whole file, and their seconds. */
function partOf({ file, seconds, times, reached }, id) {
  const names = reached.get(id);
  if (!names) return [];
  if (names.has(WHOLE)) return [{ file, seconds }];
  let sum = LOAD_SECONDS;
  for (const name of names) sum += times.get(name) ?? 0;
  return [{ file, names: [...names], seconds: Math.min(sum, seconds) }];
}

/**
 * The tests that are run for a mutant: the shortest first, as long as they fit into `seconds`, but
 * at least one. `left` counts the files that do not fit.
 */
export function testsOf(covered, id, seconds) {
  const parts = covered.flatMap((file) => partOf(file, id)).sort((a, b) => a.seconds - b.seconds);
  const taken = [];
  let sum = 0;
  for (const part of parts) {
    if (taken.length > 0 && sum + part.seconds > seconds) break;
    taken.push(part);
    sum += part.seconds;
  }
  return { taken, seconds: sum, left: parts.length - taken.length };
}

const escaped = (name) => name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/ /g, '\\s+');
const MAX_PATTERN = 30_000;

/** A pattern for `jest -t`; undefined where there are too many names. */
export function patternOf(taken) {
  const pattern = `^(${taken.flatMap(({ names }) => names.map(escaped)).join('|')})$`;
  return pattern.length > MAX_PATTERN ? undefined : pattern;
}
