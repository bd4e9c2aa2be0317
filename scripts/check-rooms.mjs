#!/usr/bin/env node
// Checks rules of the sources: allowed imports and includes, cycles, banned words, opening
// comments, sizes. Usage: check-rooms.mjs [ROOT]
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { dirname, extname, join, normalize, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { circlesOf } from './import-circles.mjs';

const root = process.argv[2] ?? join(dirname(fileURLToPath(import.meta.url)), '..');
const MAX_LINES = 500;

/** lib/: a room imports only rooms of later rows. */
const LIB_ROWS = [
  ['trainer'],
  ['config'],
  ['engine'],
  ['profiler', 'plan'],
  ['zero', 'models'],
  ['text', 'pipe', 'peft', 'parallel', 'compression', 'watch'],
  ['hub'],
  ['optim', 'data', 'monitor', 'comm'],
  ['checkpoint', 'nn'],
  ['tensor'],
  ['runtime'],
];
/** Rooms that inference may import: models with their parts, and configurations. */
const MODEL_ROOMS = [
  ...['config', 'models', 'text', 'pipe', 'peft', 'parallel', 'hub', 'data', 'comm'],
  ...['checkpoint', 'nn', 'tensor', 'runtime'],
];
/** Rooms outside the rows, with the rooms that each may import. */
const LIB_BESIDE = {
  inference: MODEL_ROOMS,
  evaluation: [...MODEL_ROOMS, 'inference'],
  serve: [...MODEL_ROOMS, 'inference'],
  autotuning: ['config', 'plan', 'runtime'],
  launch: [
    'config',
    'checkpoint',
    'runtime',
    'plan',
    'trainer',
    'serve',
    'autotuning',
    'evaluation',
    'models',
    'monitor',
    'hub',
    'watch',
  ],
};
/** Rooms beside the rows that a room of the rows may import: training samples rollouts. */
const LIB_ALSO = { trainer: ['inference'] };
/** Files directly in lib/ that every room may import. */
const LIB_SHARED = ['errors', 'version'];
/** Files of lib/ that a room may import although they are entry points. */
const LIB_CALLED = { trainer: ['initialize'] };

/**
 * test/: a room's tests are in the folder of its name. Other folders test several rooms, csrc/, or
 * no code.
 */
const TEST_FOLDERS = [
  ...[...LIB_ROWS.flat(), ...Object.keys(LIB_BESIDE)],
  ...['autograd', 'native', 'io', 'e2e', 'faults', 'gpu', 'tarball'],
  ...['docs', 'scripts', 'support', 'golden', 'clients'],
];

/** csrc/: other rooms that a room may include. `addon` may include every room. */
const CSRC_INCLUDES = {
  core: [],
  ops: ['core'],
  comm: ['core', 'cpu'],
  io: ['core'],
  grammar: ['core'],
  cpu: ['core', 'ops'],
  cuda: ['core', 'ops', 'comm'],
};
/**
 * The implementations of an op also include their back end. core includes only the op table of ops.
 */
const CSRC_EXCEPTIONS = [
  { from: /^csrc\/ops\/.*_cpu\.(cc|h)$/, to: /^csrc\/cpu\// },
  { from: /^csrc\/ops\/.*\.cuh?$/, to: /^csrc\/cuda\// },
  { from: /^csrc\/core\//, to: /^csrc\/ops\/op_list\.h$/ },
];

const BANS = [
  {
    where: /^csrc\//,
    word: /\bZeRO\b|\bzero_?stage\b|\bstage [0-3]\b|\b(ds_?)?config\b/,
    why: 'the mechanism does not know about optimizer stages or configuration',
  },
  {
    where: /^csrc\//,
    word: /(^|[^\w.>:])(exit|_exit|abort|printf|fprintf)\s*\(|std::(cerr|cout|exit|abort)\b/,
    why: 'throw ds::Error; never print or end the host process',
  },
  {
    where: /^csrc\/(?!addon\/)/,
    word: /\bnapi\b|\bNapi::/i,
    why: 'only csrc/addon speaks Node-API',
  },
  {
    where: /^lib\/(?!runtime\/)/,
    word: /\b(cuda|nccl)\b/i,
    except: /(['"`])cuda(:[^'"`]*)?\1/g, // the device type is user-visible data
    why: 'only lib/runtime knows back ends by name',
  },
  {
    where: /^lib\/(?!launch\/|runtime\/addon\.ts|hub\/environment\.ts)/,
    word: /\bprocess\.env\b/,
    why: 'lib/launch, lib/runtime/addon.ts and lib/hub/environment.ts read the environment',
  },
];

const OPENING = {
  '//': ['.ts', '.mts', '.js', '.mjs', '.cjs', '.cc', '.h', '.cu', '.cuh'],
  '#': ['.cmake', '.gyp', '.sh', ''],
  '"""': ['.py'],
};
const BANNED_NAMES = /^(utils?|helpers?|common|misc)\./;

const problems = [];
const report = (file, line, text) => problems.push(`${file}${line ? `:${line}` : ''}: ${text}`);

function* walk(folder) {
  for (const name of existsSync(folder) ? readdirSync(folder).sort() : []) {
    const path = join(folder, name);
    if (statSync(path).isDirectory()) {
      if (name !== 'golden' && name !== '__pycache__' && name !== 'results') yield* walk(path);
    } else yield relative(root, path).split(sep).join('/');
  }
}

function checkOpening(file, lines) {
  const starts = Object.keys(OPENING).find((s) => OPENING[s].includes(extname(file)));
  if (!starts) return;
  const first = lines[0].startsWith('#!') ? lines[1] : lines[0];
  const good = first?.startsWith(starts) || (starts === '//' && first?.startsWith('/*'));
  if (!good) report(file, 1, 'open with one sentence of purpose');
}

function checkBans(file, lines) {
  for (const { where, word, except, why } of BANS) {
    if (!where.test(file)) continue;
    lines.forEach((line, i) => {
      const found = word.exec(except ? line.replace(except, '') : line);
      if (found) report(file, i + 1, `"${found[0].trim()}": ${why}`);
    });
  }
}

const rowOf = (room) => LIB_ROWS.findIndex((row) => row.includes(room));

function mayImport(from, to) {
  if (from === to) return true;
  if (from in LIB_BESIDE) return LIB_BESIDE[from].includes(to);
  if (LIB_ALSO[from]?.includes(to)) return true;
  return rowOf(from) !== -1 && rowOf(to) > rowOf(from);
}

/** Imports between files of lib/, types included. */
const imports = new Map();

function noteImport(file, target) {
  const source = [target.replace(/\.js$/, '.ts'), `${target}/index.ts`].find((path) =>
    existsSync(join(root, path)),
  );
  if (source) imports.set(file, [...(imports.get(file) ?? []), source]);
}

function checkCircles() {
  for (const circle of circlesOf(imports)) {
    report(circle[0], 0, `imports go in a circle: ${circle.join(' -> ')}`);
  }
}

/**
 * Checks one TypeScript file of lib/. Files directly in lib/ are the public surface: they import
 * anything.
 */
function checkImports(file, lines) {
  const room = file.split('/').length > 2 ? file.split('/')[1] : null;
  lines.forEach((line, i) => {
    for (const [, , path] of line.matchAll(/(from |require\(|import\(|import )'(\.[^']+)'/g)) {
      const target = normalize(join(dirname(file), path))
        .split(sep)
        .join('/');
      if (target.startsWith('types/')) continue;
      noteImport(file, target);
      const parts = target.split('/');
      if (parts[0] !== 'lib') report(file, i + 1, `lib imports ${target}, which is outside lib`);
      else if (room === null) continue;
      else if (parts.length === 2) {
        const name = parts[1].replace(/\.\w+$/, '');
        const open = [...LIB_SHARED, ...(LIB_CALLED[room] ?? [])];
        if (!open.includes(name)) report(file, i + 1, `${room} imports lib/${name}`);
      } else if (!mayImport(room, parts[1])) {
        report(file, i + 1, `${room} imports ${parts[1]}, against the order of the rooms`);
      }
    }
  });
}

function checkIncludes(file, lines) {
  const room = file.split('/')[1];
  if (room === 'addon') return;
  const allowed = CSRC_INCLUDES[room];
  if (!allowed) return report(file, 0, `unknown room csrc/${room}`);
  lines.forEach((line, i) => {
    const [, path] = /^\s*#\s*include\s*"([^"]+)"/.exec(line) ?? [];
    if (!path) return;
    const target = normalize(join(dirname(file), path))
      .split(sep)
      .join('/');
    const to = target.split('/')[1];
    if (to === room || allowed.includes(to)) return;
    if (CSRC_EXCEPTIONS.some((rule) => rule.from.test(file) && rule.to.test(target))) return;
    report(file, i + 1, `csrc/${room} includes ${target}, against the order of the rooms`);
  });
}

function check(file) {
  const extension = extname(file);
  if (['.json', '.jsonc', '.safetensors', '.bin', '.txt', '.md'].includes(extension)) return;
  const lines = readFileSync(join(root, file), 'utf8').split('\n');
  const name = file.split('/').at(-1);
  if (BANNED_NAMES.test(`${name}.`)) report(file, 0, 'a file named so has no subject');
  if (lines.length - 1 > MAX_LINES && !name.includes('.generated.')) {
    report(file, 0, `${lines.length - 1} lines, at most ${MAX_LINES}`);
  }
  checkOpening(file, lines);
  checkBans(file, lines);
  if (file.startsWith('lib/')) checkImports(file, lines);
  if (file.startsWith('csrc/')) checkIncludes(file, lines);
  const [top, folder, inside] = file.split('/');
  if (top === 'test' && inside && !TEST_FOLDERS.includes(folder)) {
    report(file, 0, `test/${folder} is no home of tests: they lie in test/<room>`);
  }
}

const folders = ['lib', 'types', 'csrc', 'cmake', 'test', 'bench', 'examples', 'scripts'];
const files = folders.flatMap((folder) => [...walk(join(root, folder))]);
for (const file of files) check(file);
checkCircles();
for (const problem of problems) console.error(problem);
console.log(`check-rooms: ${files.length} files, ${problems.length} problems`);
process.exitCode = problems.length > 0 ? 1 : 0;
