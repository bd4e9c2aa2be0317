// Checks that pages, comments and messages are plain English. Each room has a budget, which only
// falls.
//
//   node scripts/check-words.mjs                    fails where a group exceeds its budget
//   node scripts/check-words.mjs --table            prints all groups
//   node scripts/check-words.mjs --worst 20 GROUP   prints sentences to rewrite, the worst first
//   node scripts/check-words.mjs --update           lowers budgets to the present values
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { addComments, addPage, GOAL, Group } from './words/prose.mjs';
import { commentsOfCpp, wordsOfScript } from './words/sources.mjs';

process.chdir(path.join(import.meta.dirname, '..'));
const BUDGET = 'scripts/words/budget.json';
const FOLDERS = ['docs', 'lib', 'csrc', 'examples', 'bench', 'scripts', 'test'];

/** "lib/zero" of lib/zero/bucket.ts; the group of a file outside the rooms is its folder. */
function roomOf(file) {
  const parts = file.split('/');
  return parts.length > 2 ? `${parts[0]}/${parts[1]}` : parts[0];
}

function filesOf(folder) {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile() && !/node_modules/.test(entry.parentPath));
  return files.map((entry) => path.join(entry.parentPath, entry.name));
}

function groups() {
  const all = new Map();
  const group = (name) => {
    if (!all.has(name)) all.set(name, new Group());
    return all.get(name);
  };
  for (const file of [...readdirSync('.'), ...FOLDERS.flatMap(filesOf)]) {
    if (/\.generated\.|^test\/golden/.test(file)) continue;
    const source = () => readFileSync(file, 'utf8');
    if (/\.md$/.test(file)) addPage(group(file), file, source());
    else if (/^csrc\/.*\.(cc|cu|cuh|h)$/.test(file)) {
      addComments(group(roomOf(file)), file, commentsOfCpp(source()));
    } else if (/^(lib|examples|bench|scripts|test)\/.*\.(ts|js|mjs|cjs)$/.test(file)) {
      const { comments, messages } = wordsOfScript(file, source());
      addComments(group(roomOf(file)), file, comments);
      if (!/^(lib|examples)\//.test(file)) continue;
      for (const { line, text } of messages)
        group(`${roomOf(file)} messages`).add(file, line, text);
    }
  }
  return all;
}

const args = process.argv.slice(2);
const all = groups();
const budget = existsSync(BUDGET) ? JSON.parse(readFileSync(BUDGET, 'utf8')) : null;

if (args[0] === '--worst') {
  const found = all.get(args[2]);
  if (!found) throw new Error(`no group ${args[2]}; groups: ${[...all.keys()].join(', ')}`);
  console.log(found.worst(Number(args[1])).join('\n'));
  process.exit(0);
}

const next = {};
const failed = [];
const keys = Object.keys(GOAL);
const rows = [...all].sort(([a], [b]) => (a < b ? -1 : 1));
for (const [name, found] of rows) {
  const now = found.measure();
  if (args.includes('--table')) {
    console.log(
      name.padEnd(32),
      ...['words', 'index', ...keys].map((key) => `${key} ${now[key]}`.padEnd(13)),
    );
  }
  for (const key of keys) {
    // Without a file the present values are the first budget.
    const limit = Math.max(GOAL[key], budget === null ? now[key] : (budget[name]?.[key] ?? 0));
    if (now[key] > limit) failed.push({ name, key, limit, value: now[key], found });
    const value = Math.min(limit, now[key]);
    if (value > GOAL[key]) next[name] = { ...next[name], [key]: value };
  }
}
if (args.includes('--update')) {
  writeFileSync(BUDGET, `${JSON.stringify(next, null, 2)}\n`);
} else if (JSON.stringify(next) !== JSON.stringify(budget) && failed.length === 0) {
  console.log('words: some groups are below their budget; node scripts/check-words.mjs --update');
}
for (const { name, key, limit, value, found } of failed) {
  console.error(`words: ${name}: ${key}: expected at most ${limit}, got ${value}`);
  for (const place of found.worst(5)) console.error(`  ${place}`);
}
if (failed.length > 0) {
  console.error(
    'words: CONTRIBUTING.md explains how to write; --worst 20 GROUP prints more sentences',
  );
  process.exitCode = 1;
}
