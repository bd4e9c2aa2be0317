#!/usr/bin/env node
// Builds the native addon with CMake into build/Release. binding.gyp and prebuildify run it too.
// Usage: node scripts/build-native.mjs [--tree=NAME] [-DOPTION=VALUE ...]; NAME builds into
// build/NAME.
import { execFileSync, spawnSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
} from 'node:fs';
import { availableParallelism, freemem } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const GIB_PER_COMPILER = 2; // peak of one nvcc or one template-heavy g++

/** As many compilers as there are cores, fewer where memory would not hold them. */
function jobs() {
  const asked = Number(process.env.DS_BUILD_JOBS);
  if (asked > 0) return asked;
  const fitting = Math.floor(freemem() / (GIB_PER_COMPILER * 2 ** 30));
  return Math.max(1, Math.min(availableParallelism(), fitting));
}

function run(command, args) {
  const { status, error } = spawnSync(command, args, { cwd: root, stdio: 'inherit' });
  if (error?.code === 'ENOENT') {
    console.error(`${command} was not found. On Debian or Ubuntu: apt-get install cmake g++`);
    process.exit(1);
  }
  if (status !== 0) process.exit(status ?? 1);
}

function hasNinja() {
  try {
    execFileSync('ninja', ['--version'], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

/**
 * Removes a build tree that CMake would refuse: the checkout was moved or copied, or Ninja came or
 * went since.
 */
function dropForeignTree(tree, generator) {
  const cache = join(tree, 'CMakeCache.txt');
  if (!existsSync(cache)) return;
  const text = readFileSync(cache, 'utf8');
  const entry = (key) => new RegExp(`^${key}:INTERNAL=(.*)$`, 'm').exec(text)?.[1];
  const isOwn = entry('CMAKE_HOME_DIRECTORY') === root && entry('CMAKE_CACHEFILE_DIR') === tree;
  if (isOwn && entry('CMAKE_GENERATOR') === generator) return;
  console.log(`building ${tree} anew: it was made in another place or by another build tool`);
  rmSync(tree, { recursive: true });
}

/** Replaces files by renaming, so that a process that has the old addon loaded keeps its pages. */
function publish(from, to) {
  const libraries = (folder) => readdirSync(folder).filter((name) => /\.(node|so)$/.test(name));
  mkdirSync(to, { recursive: true });
  const built = libraries(from);
  for (const stale of libraries(to).filter((name) => !built.includes(name)))
    rmSync(join(to, stale));
  for (const name of built) {
    const fresh = join(to, `.${name}.${process.pid}`);
    copyFileSync(join(from, name), fresh);
    renameSync(fresh, join(to, name));
  }
  console.log(`built ${built.join(', ')} in ${to}`);
}

// node-gyp and prebuildify pass words of their own (rebuild, --target=...); they change nothing
// here.
const name = process.argv.find((word) => word.startsWith('--tree='))?.slice(7) ?? 'Release';
if (!/^[\w-]+$/.test(name)) {
  console.error(`--tree: expected a plain name for folders in .cmake and build, got "${name}"`);
  process.exit(2);
}
const options = process.argv.filter((word) => word.startsWith('-D'));
const tree = join(root, '.cmake', name);
const out = join(tree, 'out');
const generator = hasNinja() ? 'Ninja' : 'Unix Makefiles';
dropForeignTree(tree, generator);
run('cmake', [
  ...['-S', root, '-B', tree, '-G', generator],
  ...['-DCMAKE_BUILD_TYPE=Release', `-DCMAKE_LIBRARY_OUTPUT_DIRECTORY=${out}`, ...options],
]);
run('cmake', ['--build', tree, '--parallel', String(jobs())]);
publish(out, join(root, 'build', name));
