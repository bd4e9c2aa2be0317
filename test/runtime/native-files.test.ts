// The addon and the GPU back end are found by trying files; failures name the fix.
import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import {
  addonCandidates,
  gpuLibraryCandidates,
  loadHint,
  platformName,
} from '../../lib/runtime/native-files.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

const ROOT = packageRoot();
const HOOK = join(ROOT, 'test', 'support', 'run-typescript.cjs');
const platform = platformName();

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'native-files-'));
});
afterEach(() => rmSync(root, { recursive: true }));

/** Writes a file, with the package.json of its folder. */
function place(path: string, text = ''): string {
  const file = join(root, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(join(dirname(file), 'package.json'), '{ "version": "0.1.0" }');
  writeFileSync(file, text);
  return file;
}

test('a local build precedes the platform package, which precedes prebuilt files', () => {
  const prebuilt = place(`prebuilds/${platform}/ds_native.node`);
  const packaged = place(`node_modules/@ds/native-${platform}/ds_native.node`);
  place('node_modules/@ds/native-plan9-mips/ds_native.node');
  const built = place('build/Release/ds_native.node');
  expect(addonCandidates(root)).toEqual([built, packaged, prebuilt]);
});

test('the GPU back end beside the addon precedes CUDA 13, which precedes CUDA 12', () => {
  const addon = place('build/Release/ds_native.node');
  const older = place(`node_modules/@ds/native-${platform}-cuda12/libds_cuda.so`);
  const newer = place(`node_modules/@ds/native-${platform}-cuda13/libds_cuda.so`);
  expect(gpuLibraryCandidates(addon, root)).toEqual([newer, older]);
  const beside = place('build/Release/libds_cuda.so');
  expect(gpuLibraryCandidates(addon, root)).toEqual([beside, newer, older]);
});

test('without packages, and with a package without its file, there is no candidate', () => {
  place(`node_modules/@ds/native-${platform}/package.json`, '{}');
  expect(addonCandidates(root)).toEqual([]);
  expect(gpuLibraryCandidates(join(root, 'ds_native.node'), root)).toEqual([]);
});

test.each([
  ['', 'linux-x64', /^Install @ds\/native-linux-x64 .*--omit=optional.*package-lock\.json/],
  [
    '',
    'darwin-arm64',
    /ships for Linux on x64 and arm64\. For the CPU of a Mac, build it from source/,
  ],
  ['', 'win32-x64', /does not run on Windows itself\. Install WSL 2/],
  ["/lib/libm.so.6: version `GLIBC_2.35' not found", 'linux-arm64', /needs glibc 2\.35/],
  ['Error loading shared library ld-linux-x86-64.so.2', 'linux-x64', /needs glibc.*node:22/],
  ['a.node: invalid ELF header', 'linux-x64', /^Reinstall the package, or build/],
])('the hint for "%s" on %s', (reasons, name, hint) => {
  expect(loadHint(reasons, name, () => 'glibc 2.36')).toMatch(hint);
});

test.each([
  ['linux-x64', /On Alpine, install .*: npm install @ds\/native-linux-x64-musl\.$/],
  ['linux-arm64', /On Alpine, build it from source: npm explore @ds\/native -- npm run build/],
])('on musl, where no package is installed, the hint for %s is one command', (name, command) => {
  const hint = loadHint('', name, () => 'musl');
  expect(hint).toMatch(/^The package needs glibc\. Use an image with glibc/);
  expect(hint).toMatch(command);
});

test('the package for musl is tried after the one for glibc', () => {
  const musl = place(`node_modules/@ds/native-${platform}-musl/ds_native.node`);
  const glibc = place(`node_modules/@ds/native-${platform}/ds_native.node`);
  expect(addonCandidates(root)).toEqual([glibc, musl]);
});

/** Loads the addon from a copy of the sources in `root`, and prints `expression` or the error. */
function loadIn(expression: string): string {
  cpSync(join(ROOT, 'lib', 'runtime'), join(root, 'lib', 'runtime'), { recursive: true });
  cpSync(join(ROOT, 'lib', 'errors.ts'), join(root, 'lib', 'errors.ts'));
  writeFileSync(join(root, 'CMakeLists.txt'), '');
  const program = `
    try {
      const { addon, addonPath } = require('${root}/lib/runtime/addon.ts');
      console.log(${expression});
    } catch (error) { console.log(error.message, error.hint); }`;
  const env = { ...process.env, DS_NATIVE_BINDING: '' };
  const options = { encoding: 'utf8', env } as const;
  const { stdout, stderr } = spawnSync(process.execPath, ['-r', HOOK, '-e', program], options);
  return stdout.trim() || stderr;
}

const realAddon = join(ROOT, 'build', 'Release', 'ds_native.node');

test('a file that does not load is skipped for the next one', () => {
  place('build/Release/ds_native.node', 'no library');
  const packaged = place(`node_modules/@ds/native-${platform}/ds_native.node`);
  copyFileSync(realAddon, packaged);
  expect(loadIn('addonPath()')).toBe(packaged);
});

test('if no file loads, the error has the reason of each', () => {
  const built = place('build/Release/ds_native.node', 'no library');
  const packaged = place(`node_modules/@ds/native-${platform}/ds_native.node`, 'nor this');
  const message = loadIn('addonPath()');
  for (const file of [built, packaged]) expect(message).toContain(`${file}: `);
  expect(message).toMatch(/Reinstall the package/);
});

test('without any file, the error names the package to install', () => {
  const message = loadIn('addonPath()');
  expect(message).toContain(`no package @ds/native-${platform} and no build`);
});

test('a GPU back end that does not load is refused by its path', () => {
  const packaged = place(`node_modules/@ds/native-${platform}/ds_native.node`);
  copyFileSync(realAddon, packaged);
  const wrong = place(`node_modules/@ds/native-${platform}-cuda13/libds_cuda.so`, 'no library');
  const message = loadIn('JSON.stringify(addon.probe())');
  expect(JSON.parse(message)).toMatchObject({ library: '', deviceCount: 0 });
  expect(message).toContain(wrong);
});

const compiler = spawnSync('cc', ['--version']).status === 0 ? test : test.skip;
compiler('a GPU back end of another build is refused by its path', () => {
  const packaged = place(`node_modules/@ds/native-${platform}/ds_native.node`);
  copyFileSync(realAddon, packaged);
  const source = place('wrong.c', 'int ds_cuda_interface(void) { return 7; }');
  const wrong = place(`node_modules/@ds/native-${platform}-cuda13/libds_cuda.so`);
  expect(spawnSync('cc', ['-shared', '-o', wrong, source]).status).toBe(0);
  const { library: none, message } = JSON.parse(loadIn('JSON.stringify(addon.probe())'));
  expect(none).toBe('');
  expect(message).toContain(`in ${wrong}, got 7. libds_cuda.so and ds_native.node come from`);
});

/** An addon of another version. */
const STALE = `
  #include <node_api.h>
  static napi_value one(napi_env env, napi_callback_info info) {
    napi_value value;
    return napi_create_int32(env, 1, &value) == napi_ok ? value : 0;
  }
  NAPI_MODULE_INIT() {
    napi_value function;
    napi_create_function(env, "opInterface", NAPI_AUTO_LENGTH, one, 0, &function);
    napi_set_named_property(env, exports, "opInterface", function);
    return exports;
  }`;

compiler('if all files are of other versions, the error is that of the first one', () => {
  const source = place('stale.c', STALE);
  const built = place('build/Release/ds_native.node');
  const headers = (require('node-api-headers') as { include_dir: string }).include_dir;
  const words = ['-shared', '-fPIC', `-I${headers}`, '-o', built, source];
  expect(spawnSync('cc', words).status).toBe(0);
  copyFileSync(built, place(`node_modules/@ds/native-${platform}/ds_native.node`));
  expect(loadIn('addonPath()')).toMatch(
    /^native addon: expected an addon built for the ops of this package, \d+, got \S+build\/Release\/ds_native\.node for 1\. Rebuild it: npm/,
  );
});

const library = join(ROOT, 'build', 'Release', 'libds_cuda.so');
(existsSync(library) ? test : test.skip)('a broken GPU back end is skipped for the next', () => {
  const packaged = place(`node_modules/@ds/native-${platform}/ds_native.node`);
  copyFileSync(realAddon, packaged);
  place(`node_modules/@ds/native-${platform}-cuda13/libds_cuda.so`, 'no library');
  const next = place(`node_modules/@ds/native-${platform}-cuda12/libds_cuda.so`);
  copyFileSync(library, next);
  expect(loadIn('addon.probe().library')).toBe(next);
});
