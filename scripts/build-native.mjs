#!/usr/bin/env node
// Builds the native addon into build/Release by cmake-js, which chooses the generator and finds the
// headers. This script runs the commands of cmake-js itself, for three reasons: cmake-js does not
// notice moved trees, it removes a tree after an error, and it writes build/Release in place.
//
//   --tree=NAME         build into build/NAME
//   --target=NAME       build only this target of CMake, into .cmake/TREE/out
//   --arm64              cross-compile for linux-arm64; see cmake/Arm64.cmake
//   --this-machine      leave out the GPU back end if no GPU is here; --cuda builds it
//   --progress          print one line of progress; build/NAME.log receives the compilers' output
//   -DOPTION=VALUE      an option of CMake
// DS_FAST_GPU_CODE=1 in the environment compiles slow GPU code in a third of the time.
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import {
  copyFileSync,
  createWriteStream,
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
import { buildForMachine } from './this-machine.mjs';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const GIB_PER_COMPILER = 2; // peak of one nvcc or one template-heavy g++

/** As many compilers as there are cores, fewer where memory would not hold them. */
function jobs() {
  const asked = Number(process.env.DS_BUILD_JOBS);
  if (asked > 0) return asked;
  const fitting = Math.floor(freemem() / (GIB_PER_COMPILER * 2 ** 30));
  return Math.max(1, Math.min(availableParallelism(), fitting));
}

function hasCcache() {
  try {
    execFileSync('ccache', ['--version'], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

/** The commands of cmake-js that configure and build a tree. */
async function commandsOf(tree, target) {
  const cmakeJs = await import('cmake-js').catch((error) => {
    if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error;
    console.error('cmake-js was not found. Run: npm ci --ignore-scripts');
    process.exit(1);
  });
  const system = new cmakeJs.default.BuildSystem({
    directory: root,
    out: tree,
    config: 'Release',
    target,
    parallel: String(jobs()),
    logName: 'cmake-js',
    noLog: true,
  });
  try {
    return [await system.getConfigureCommand(), await system.getBuildCommand()];
  } catch (error) {
    console.error(error.message);
    process.exit(1);
  }
}

function fail(command, status, log) {
  if (log) {
    const lines = readFileSync(log, 'utf8').trimEnd().split('\n');
    console.error(lines.slice(-40).join('\n'));
  }
  if (status === 'ENOENT') {
    console.error(`${command} was not found. On Debian or Ubuntu: apt-get install cmake g++`);
  }
  process.exit(Number.isInteger(status) && status > 0 ? status : 1);
}

function run(command, args, cwd = root) {
  const { status, error } = spawnSync(command, args, { cwd, stdio: 'inherit' });
  if (status !== 0) fail(command, error?.code ?? status);
}

/** Prints one line that counts up on a terminal, and a line for each quarter elsewhere. */
function showProgress(done, total) {
  if (done === 0) return;
  const text = `compiled ${done} of ${total}`;
  if (process.stdout.isTTY) process.stdout.write(`\r${text}${done === total ? '\n' : ''}`);
  else if (done === total || done % Math.ceil(total / 4) === 0) console.log(text);
}

/** Runs a command with its output in `log`; Ninja's and make's counts become the progress. */
function runQuietly(command, args, cwd, log) {
  return new Promise((resolve) => {
    const file = createWriteStream(log, { flags: 'a' });
    const child = spawn(command, args, { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
    let shown = '';
    const read = (chunk) => {
      file.write(chunk);
      const counts = [...chunk.toString().matchAll(/^\[ *(\d+)(?:\/(\d+)|%)\]/gm)].at(-1);
      if (!counts || counts[0] === shown) return;
      shown = counts[0];
      showProgress(Number(counts[1]), Number(counts[2] ?? 100));
    };
    child.stdout.on('data', read);
    child.stderr.on('data', read);
    child.on('error', (error) => fail(command, error.code));
    child.on('close', (status) => {
      file.end(() => (status === 0 ? resolve() : fail(command, status, log)));
    });
  });
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

const textOf = (option) =>
  process.argv.find((word) => word.startsWith(`${option}=`))?.slice(option.length + 1);
const name = textOf('--tree') ?? 'Release';
if (!/^[\w-]+$/.test(name)) {
  console.error(`--tree: expected a plain name for folders in .cmake and build, got "${name}"`);
  process.exit(2);
}
const target = textOf('--target');
const tree = join(root, '.cmake', name);
const built = join(root, 'build', name);
const out = join(tree, 'out');
const options = process.argv.filter((word) => word.startsWith('-D'));
const launchers = ['C', 'CXX', 'CUDA'].map((language) => `CMAKE_${language}_COMPILER_LAUNCHER`);
// An option of an earlier build does not stay.
const own = ['DS_CUDA', 'DS_CUDA_ARCHS', 'DS_ALL_GPUS', 'DS_FAST_GPU_CODE', 'DS_SANITIZE'];
const dropped = [...own, ...launchers];
if (process.env.DS_FAST_GPU_CODE === '1') options.push('-DDS_FAST_GPU_CODE=ON');
if (process.argv.includes('--arm64')) {
  const sysroot = join(root, '.cmake', 'arm64-sysroot');
  run(join(root, 'scripts', 'arm64-sysroot'), []);
  options.push(
    `-DCMAKE_TOOLCHAIN_FILE=${join(root, 'cmake', 'Arm64.cmake')}`,
    `-DDS_ARM64_SYSROOT=${sysroot}`,
    '-DDS_CUDA=OFF',
  );
}
if (process.argv.includes('--this-machine')) {
  const cuda = process.argv.includes('--cuda');
  const isBuilt = [built, out].some((folder) => existsSync(join(folder, 'libds_cuda.so')));
  const { options: fitting, note } = buildForMachine({ cuda, isBuilt });
  options.push(...fitting);
  // A GPU back end that was built before keeps its architectures.
  if (isBuilt && !cuda) dropped.length = 0;
  console.log(note);
}
if (hasCcache()) {
  options.unshift(...launchers.map((launcher) => `-D${launcher}=ccache`));
  // Without these, ccache keeps nothing that uses a precompiled header.
  process.env.CCACHE_SLOPPINESS ??= 'pch_defines,time_macros';
}
const [configure, build] = await commandsOf(tree, target);
dropForeignTree(tree, configure[configure.indexOf('-G') + 1]);
for (const folder of [join(root, 'build'), tree]) mkdirSync(folder, { recursive: true });
const log = join(root, 'build', `${name}.log`);
const isQuiet = process.argv.includes('--progress');
if (isQuiet) rmSync(log, { force: true });
const step = ([command, ...words]) =>
  isQuiet ? runQuietly(command, words, tree, log) : run(command, words, tree);
await step([
  ...configure,
  ...dropped.map((key) => `-U${key}`),
  `-DCMAKE_LIBRARY_OUTPUT_DIRECTORY=${out}`,
  ...options,
]);
await step(build);
if (target === undefined) publish(out, built);
