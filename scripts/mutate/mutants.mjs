// Finds mutants of source files with Stryker's instrumenter, chooses some by a seed, applies one.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInstrumenter } from '@stryker-mutator/instrumenter';
import { createInjector } from 'typed-inject';

/**
 * Stryker mutants that are left out: an emptied text is seen only by a test that repeats the whole
 * text.
 */
const EXCLUDED = ['StringLiteral'];

const silent = () => undefined;
const logger = {
  trace: silent,
  debug: silent,
  info: silent,
  warn: silent,
  error: silent,
  fatal: silent,
  isDebugEnabled: () => false,
};

/** Every file with switches around its mutants (`files`), and the list of the mutants. */
async function instrument(root, paths) {
  const instrumenter = createInstrumenter(createInjector().provideValue('logger', logger));
  const files = paths.map((path) => ({
    name: path,
    mutate: true,
    content: readFileSync(join(root, path), 'utf8'),
  }));
  const options = { plugins: null, excludedMutations: EXCLUDED, ignorers: [] };
  return instrumenter.instrument(files, options);
}

/** Seeded generator of numbers in [0, 1) (mulberry32). */
function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Chooses `number` items of the list by the seed. */
function choose(list, number, seed) {
  const random = seeded(seed);
  const order = [...list];
  for (let at = order.length - 1; at > 0; at--) {
    const other = Math.floor(random() * (at + 1));
    [order[at], order[other]] = [order[other], order[at]];
  }
  return order.slice(0, number);
}

const KILL = 'killed';
const IGNORED = 'Ignored';

/** Instrumented files, and `number` of their mutants. */
export async function chosenMutants(root, paths, { number, seed, isWanted }) {
  const { files, mutants } = await instrument(root, paths);
  const open = mutants.filter((one) => one.status !== IGNORED && isWanted(one));
  return { files, total: open.length, chosen: choose(open, number, seed) };
}

/** Index into `text` of a position; line and column begin at 0. */
function indexOf(text, { line, column }) {
  let start = 0;
  for (let at = 0; at < line; at++) start = text.indexOf('\n', start) + 1;
  return start + column;
}

/** The text before and after the change, and the whole changed file. */
export function mutated(source, { location, replacement }) {
  const start = indexOf(source, location.start);
  const end = indexOf(source, location.end);
  const original = source.slice(start, end);
  return { original, content: source.slice(0, start) + replacement + source.slice(end) };
}

/** Share of the mutants that tests have seen, in percent; a time-out counts as seen. */
export function scoreOf(results) {
  const counts = {};
  for (const { verdict } of results) counts[verdict] = (counts[verdict] ?? 0) + 1;
  const seen = (counts[KILL] ?? 0) + (counts.timeout ?? 0);
  return { counts, score: results.length === 0 ? 0 : (100 * seen) / results.length };
}
