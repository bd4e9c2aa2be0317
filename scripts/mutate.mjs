#!/usr/bin/env node
// Mutation testing: changes one place of a source at a time and runs the tests that reach it.
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { deserialize, serialize } from 'node:v8';
import { coverFile, patternOf, testsOf } from './mutate/coverage.mjs';
import { chosenMutants, mutated, scoreOf } from './mutate/mutants.mjs';
import { runTests } from './mutate/run-tests.mjs';
import { copyTrees, shareOut } from './mutate/trees.mjs';

const USAGE = `usage: npm run mutate -- [options] FILES or folders of lib/
A file may name lines: lib/launch/nodes.ts:73 or lib/launch/nodes.ts:60-80.
  --number N    mutants to try (default 100)
  --seed N      chooses them (default 1)
  --tests PATH  test files or folders besides the room's own, several times
  --only PATH   test files or folders instead of the room's own, several times
  --jobs N      copies of the sources in which tests run side by side (default 1)
  --seconds N   time of tests for a mutant (default 60)
  --minutes N   stop after about this time (default: none)
  --again       try those again that no test has seen
  --types       ask the type checker about those that survive: it may refuse them
  --limit N     time of a test file in the first run (default 180)
  --root PATH   another checkout (default: this one)
  --out NAME    name of the results below build/mutate (default: of the first file)
Results stand in build/mutate/NAME/results.jsonl. A second call goes on where one was stopped.`;

const cover = join(dirname(fileURLToPath(import.meta.url)), 'mutate', 'cover.cjs');

/** Sorted files below `path` with the suffix `ending`, relative to `root`. */
function filesBelow(root, path, ending) {
  const whole = join(root, path);
  if (!existsSync(whole)) throw new Error(`${path} is neither a file nor a folder of ${root}`);
  if (!statSync(whole).isDirectory()) return [path];
  const names = readdirSync(whole, { recursive: true }).filter((name) => name.endsWith(ending));
  return names.map((name) => join(path, name)).sort();
}

/** A file or folder, and the lines that a call names of it. */
function placeOf(word) {
  const [, path, from, to] = word.match(/^(.*?)(?::(\d+)(?:-(\d+))?)?$/);
  if (from === undefined) return { path, from: 1, to: Infinity };
  return { path, from: Number(from), to: Number(to ?? from) };
}

function isIn({ fileName, location }, { path, from, to }) {
  const line = location.start.line + 1;
  const isBelow = fileName === path || fileName.startsWith(`${path.replace(/\/$/, '')}/`);
  return isBelow && line >= from && line <= to;
}

const isMutable = (path) => !/\.(generated|d)\.ts$/.test(path);

/** The result stored at `path`; without a file, the result of `find`, which is then stored. */
async function keptOr(path, find) {
  if (existsSync(path)) return deserialize(readFileSync(path));
  const found = await find();
  mkdirSync(dirname(path), { recursive: true });
  // A call that is stopped leaves no half of a file.
  writeFileSync(`${path}.new`, serialize(found));
  renameSync(`${path}.new`, path);
  return found;
}

/** Writes sources that count which mutants a test reaches. */
function writeInstrumented(tree, instrumented) {
  // Loaded once: jest refuses a require after the end of a test.
  const kept = `(stryCov_9fa48.cover ??= require(${JSON.stringify(cover)}))`;
  const call = `{ ${kept}.apply(null, arguments);`;
  for (const { name, content } of instrumented) {
    const counted = content.replace(/(function stryCov_9fa48\(\) )\{/, `$1${call} return;`);
    writeFileSync(join(tree, name), counted);
  }
}

/** Which test files reach which of the mutants. */
async function coverAll(trees, { tests, instrumented, ids, limit, until }) {
  for (const tree of trees) writeInstrumented(tree, instrumented);
  const sources = JSON.stringify([instrumented, ids, limit]);
  const all = await shareOut(trees, tests, async (tree, file) => {
    const test = readFileSync(join(tree, file), 'utf8');
    const key = createHash('sha256').update(sources).update(test).digest('hex');
    const path = join(tree, '..', 'covered', key);
    if (Date.now() > until && !existsSync(path)) return undefined;
    const one = await keptOr(path, () => coverFile(tree, file, { ids, limit }));
    const cut = one.isCut ? `, ${one.times.size} tests of it; ${one.failed[0] ?? 'too long'}` : '';
    const state = one.isSound ? cut : `, left out: ${one.failed[0] ?? 'too long'}`;
    console.log(`${file}: ${one.seconds.toFixed(1)} s, reaches ${one.reached.size}${state}`);
    return one;
  });
  return all.filter((one) => one?.isSound);
}

/** Whether the tree has type errors. */
async function isRefused(tree) {
  const tsc = join(tree, 'node_modules/typescript-7/bin/tsc');
  const started = spawn(process.execPath, [tsc, '-p', 'tsconfig.json'], {
    cwd: tree,
    stdio: 'ignore',
  });
  return (await new Promise((end) => started.once('exit', end))) !== 0;
}

function verdictOf({ code, log, output }) {
  const failed = log.find(({ kind }) => kind === 'fail');
  if (failed) return { verdict: 'killed', by: failed.text };
  if (code === null) return { verdict: 'timeout' };
  if (code !== 0) return { verdict: 'killed', by: output.match(/●.*/)?.[0] ?? 'jest' };
  return { verdict: 'survived' };
}

function hasTests(log) {
  const count = (wanted) => log.filter(({ kind }) => kind === wanted).length;
  return count('test') > count('skip');
}

/** Runs chosen tests of files, then whole files; stops at the first failure. */
async function runParts(tree, taken, planned) {
  // Several times the usual duration, so that other load on the machine is not taken for a hang.
  const limit = 40 + 4 * planned;
  const pathsOf = (parts) => parts.map(({ file }) => join(tree, file));
  const named = taken.filter(({ names }) => names !== undefined);
  let files = pathsOf(taken.filter(({ names }) => names === undefined));
  let run;
  if (named.length > 0) {
    run = await runTests(tree, { files: pathsOf(named), names: patternOf(named), limit });
    if (run.code !== 0) return run;
    // No name has matched: names that change from run to run.
    if (!hasTests(run.log)) files = [...pathsOf(named), ...files];
  }
  if (files.length === 0) return run;
  const rest = await runTests(tree, { files, limit });
  return { ...rest, seconds: rest.seconds + (run?.seconds ?? 0) };
}

/** Tries one mutant, and leaves the source as it was. */
async function tryMutant(tree, mutant, covered, { seconds, types }) {
  const path = join(tree, mutant.fileName);
  const source = readFileSync(path, 'utf8');
  const { original, content } = mutated(source, mutant);
  const place = `${mutant.fileName}:${mutant.location.start.line + 1}`;
  const shown = { id: mutant.id, place, kind: mutant.mutatorName, original };
  const { taken, seconds: planned, left } = testsOf(covered, mutant.id, seconds);
  const result = { ...shown, replacement: mutant.replacement, left };
  if (taken.length === 0) return { ...result, verdict: 'unreached' };
  writeFileSync(path, content);
  try {
    const run = await runParts(tree, taken, planned);
    const verdict = verdictOf(run);
    if (types && verdict.verdict === 'survived' && (await isRefused(tree)))
      verdict.verdict = 'refused';
    return { ...result, ...verdict, seconds: run.seconds };
  } finally {
    writeFileSync(path, source);
  }
}

function print({ place, kind, original, replacement, verdict, by }) {
  const short = (text) => text.replace(/\s+/g, ' ').slice(0, 60);
  console.log(`${verdict} ${place} ${kind}: ${short(original)} -> ${short(replacement)}`);
  if (by) console.log(`    by ${by.slice(0, 120)}`);
}

const UNSEEN = ['survived', 'unreached'];

/** Results of an earlier call; `again` leaves out survivors, so that they run again. */
function earlier(out, again) {
  const lines = existsSync(out) ? readFileSync(out, 'utf8').split('\n').slice(0, -1) : [];
  const results = new Map(lines.map((line) => [JSON.parse(line).id, JSON.parse(line)]));
  const isOpen = ({ id }) => {
    const known = results.get(id);
    // Again the same ones, even where an earlier call did not come to all of them.
    return again ? known !== undefined && UNSEEN.includes(known.verdict) : known === undefined;
  };
  return { results, isOpen };
}

async function tryAll(trees, chosen, { covered, out, again, until, ...limits }) {
  const { results, isOpen } = earlier(out, again);
  await shareOut(trees, chosen.filter(isOpen), async (tree, mutant) => {
    if (Date.now() > until) return;
    const result = await tryMutant(tree, mutant, covered, limits);
    results.set(result.id, result);
    // A call that is stopped loses nothing.
    const lines = Array.from(results.values(), (one) => `${JSON.stringify(one)}\n`);
    writeFileSync(`${out}.new`, lines.join(''));
    renameSync(`${out}.new`, out);
    print(result);
  });
  return [...results.values()];
}

/** Test folders of the files' rooms, and the folders named by the call. */
function testsFor(root, files, { tests: named, only }) {
  const tests = (paths) => paths.flatMap((path) => filesBelow(root, path, '.test.ts'));
  if (only.length > 0) return [...new Set(tests(only))];
  const rooms = [...new Set(files.map((path) => path.split('/')[1]))];
  const own = rooms.map((room) => `test/${room}`).filter((path) => existsSync(join(root, path)));
  return [...new Set(tests([...own, ...named]))];
}

async function main() {
  const options = {
    number: { type: 'string', default: '100' },
    seed: { type: 'string', default: '1' },
    seconds: { type: 'string', default: '60' },
    limit: { type: 'string', default: '180' },
    tests: { type: 'string', multiple: true, default: [] },
    only: { type: 'string', multiple: true, default: [] },
    out: { type: 'string' },
    minutes: { type: 'string', default: 'Infinity' },
    again: { type: 'boolean' },
    types: { type: 'boolean' },
    jobs: { type: 'string', default: '1' },
    root: { type: 'string', default: process.cwd() },
    help: { type: 'boolean' },
  };
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  if (values.help || positionals.length === 0) {
    console.log(USAGE);
    return;
  }
  const root = resolve(values.root);
  const places = positionals.map(placeOf);
  const files = places.flatMap(({ path }) => filesBelow(root, path, '.ts')).filter(isMutable);
  const [number, seed] = [Number(values.number), Number(values.seed)];
  const {
    files: instrumented,
    total,
    chosen,
  } = await chosenMutants(root, files, {
    number,
    seed,
    isWanted: (mutant) => places.some((place) => isIn(mutant, place)),
  });
  console.log(`${chosen.length} of ${total} mutants in ${files.length} files, seed ${seed}`);

  const name = values.out ?? positionals[0].replace(/^lib\//, '').replace(/[/:]/g, '-');
  // Trees in this folder are replaced.
  if (!/^\w[\w.-]*$/.test(name))
    throw new Error(`--out ${name}: expected letters, digits, - and _`);
  const folder = resolve('build', 'mutate', name);
  const trees = copyTrees(root, folder, Number(values.jobs));
  const tests = testsFor(root, files, values);
  const until = Date.now() + 60_000 * Number(values.minutes);
  const ids = chosen.map(({ id }) => id);
  const limit = Number(values.limit);
  const covered = await coverAll(trees, { tests, instrumented, ids, limit, until });
  for (const tree of trees) for (const path of files) cpSync(join(root, path), join(tree, path));

  const out = join(folder, 'results.jsonl');
  const limits = {
    seconds: Number(values.seconds),
    again: values.again,
    types: values.types,
    until,
  };
  const results = await tryAll(trees, chosen, { covered, out, ...limits });
  const { counts, score } = scoreOf(results);
  console.log(`${relative(process.cwd(), out)}: ${JSON.stringify(counts)}`);
  console.log(`${score.toFixed(0)} % seen of ${results.length}`);
}

await main();
