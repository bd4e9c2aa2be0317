// scripts/build-native.mjs: what it refuses before it compiles.
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const folder = mkdtempSync(join(tmpdir(), 'build-native-'));
afterAll(() => rmSync(folder, { recursive: true }));

// A checkout of its own, with a cmake that writes its arguments and fails.
const cmake = `#!${process.execPath}
require('fs').appendFileSync('${folder}/calls', JSON.stringify(process.argv.slice(2)) + '\\n');
process.exit(process.argv.includes('--build') ? 3 : 0);`;

function checkout(name: string, packages: boolean): string {
  const root = join(folder, name);
  for (const part of ['scripts', 'bin']) mkdirSync(join(root, part), { recursive: true });
  for (const script of ['build-native.mjs', 'this-machine.mjs'])
    cpSync(join(packageRoot(), 'scripts', script), join(root, 'scripts', script));
  writeFileSync(join(root, 'package.json'), '{ "binary": { "napi_versions": [8] } }');
  writeFileSync(join(root, 'bin', 'cmake'), cmake, { mode: 0o755 });
  if (packages) symlinkSync(join(packageRoot(), 'node_modules'), join(root, 'node_modules'));
  return root;
}

function build(root: string, words: string[], variables: NodeJS.ProcessEnv = {}) {
  const script = join(root, 'scripts', 'build-native.mjs');
  const env = {
    ...process.env,
    PATH: `${join(root, 'bin')}:${process.env.PATH}`,
    DS_BUILD_JOBS: '2',
    DS_FAST_GPU_CODE: '',
    ...variables,
  };
  return spawnSync(process.execPath, [script, ...words], { encoding: 'utf8', env });
}

/** The arguments of the calls of cmake since the last look. */
function calls(): string[][] {
  const lines = readFileSync(join(folder, 'calls'), 'utf8').trim().split('\n');
  rmSync(join(folder, 'calls'));
  return lines.map((line) => JSON.parse(line) as string[]);
}

test('names the command to run where cmake-js is not installed', () => {
  const { status, stderr } = build(checkout('bare', false), []);
  expect(stderr).toBe('cmake-js was not found. Run: npm ci --ignore-scripts\n');
  expect(status).toBe(1);
});

test('refuses a tree outside .cmake and build', () => {
  const { status, stderr } = build(checkout('tree', true), ['--tree=../other']);
  expect(stderr).toMatch(/^--tree: expected a plain name for folders in \.cmake and build, got/);
  expect(status).toBe(2);
});

test('hands headers, options and jobs to CMake, and its status to the shell', () => {
  const root = checkout('whole', true);
  const { status } = build(root, ['--tree=Cpu', '--target=ds_base', '-DDS_CUDA=OFF']);
  expect(status).toBe(3);
  const [configure, compile] = calls();
  const tree = join(root, '.cmake', 'Cpu');
  expect(configure).toEqual(
    expect.arrayContaining([
      root,
      '-DCMAKE_BUILD_TYPE=Release',
      '-UDS_CUDA',
      '-DDS_CUDA=OFF',
      `-DCMAKE_LIBRARY_OUTPUT_DIRECTORY=${tree}/out`,
      expect.stringMatching(/^-DCMAKE_JS_INC=.*node-api-headers.*;.*node-addon-api/),
    ]),
  );
  // CMake takes the last of two options of one name.
  const last = (option: string) => configure?.findLast((word) => word.slice(2).startsWith(option));
  expect(last('DS_CUDA=')).toBe('-DDS_CUDA=OFF');
  expect(last('CMAKE_LIBRARY_OUTPUT_DIRECTORY')).toBe(
    `-DCMAKE_LIBRARY_OUTPUT_DIRECTORY=${tree}/out`,
  );
  const words = ['--build', tree, '--config', 'Release', '--target', 'ds_base', '--parallel', '2'];
  expect(compile).toEqual(words);
});

test('compiles fast GPU code unless the environment asks for slow code', () => {
  const root = checkout('gpu', true);
  const configureBuild = (variables: NodeJS.ProcessEnv) => {
    expect(build(root, [], variables).status).toBe(3);
    return calls()[0]?.filter((word) => word.includes('DS_FAST_GPU_CODE'));
  };
  expect(configureBuild({ DS_FAST_GPU_CODE: '1' })).toEqual([
    '-UDS_FAST_GPU_CODE',
    '-DDS_FAST_GPU_CODE=ON',
  ]);
  // The code of an earlier build does not stay slow.
  expect(configureBuild({})).toEqual(['-UDS_FAST_GPU_CODE']);
});
