// Tests which modules `import '@ds/native'` loads, and that all others load on first use.
import { spawnSync } from 'node:child_process';
import { statSync } from 'node:fs';
import { join } from 'node:path';

const ROOT = join(__dirname, '..', '..');
const HOOK = join(ROOT, 'test', 'support', 'run-typescript.cjs');

/** Commands, and the modules that parse their arguments and files; the rooms load without them. */
const LATER = [
  /^lib\/launch\//,
  /^lib\/trainer\/command\//,
  /-thread\.ts$/,
  /^lib\/data\/worker(-supervisor)?\.ts$/,
];
/** Built-in modules that load slowly or would open a handle. */
const HEAVY = /^(child_process|cluster|dgram|dns|http2?|https|inspector|net|readline|tls|zlib)$/;

interface Loaded {
  files: string[];
  /** Built-in modules that `program` loaded. */
  builtIn: string[];
}

function loadedBy(program: string): Loaded {
  // Leaves out the compiler of the hook, which the library does not load.
  const report = `
    require('@swc/core');
    const before = new Set([...process.moduleLoadList, ...Object.keys(require.cache)]);
    ${program};
    const fresh = (list) => list.filter((name) => !before.has(name));
    const builtIn = fresh(process.moduleLoadList).flatMap((name) => {
      const found = /^NativeModule (?!internal)(.*)$/.exec(name);
      return found ? [found[1]] : [];
    });
    console.log(JSON.stringify({ files: fresh(Object.keys(require.cache)), builtIn }));`;
  const options = { cwd: ROOT, encoding: 'utf8' } as const;
  const { stdout, stderr } = spawnSync(process.execPath, ['-r', HOOK, '-e', report], options);
  if (!stdout) throw new Error(stderr);
  const { files, builtIn } = JSON.parse(stdout) as Loaded;
  return { files: files.map((file) => file.slice(ROOT.length + 1)), builtIn };
}

const packagesOf = ({ files }: Loaded): string[] => [
  ...new Set(
    files.flatMap(
      (file) => /node_modules\/((?:@[^/]+\/)?[^/]+)\/(?!.*node_modules)/.exec(file)?.[1] ?? [],
    ),
  ),
];

const loaded = loadedBy("require('./lib/index.ts')");

test('importing the package loads no other package', () => {
  expect(packagesOf(loaded)).toEqual([]);
});

test('importing the package loads no command and no thread entry', () => {
  const early = loaded.files.filter((file) => LATER.some((later) => later.test(file)));
  expect(early).toEqual([]);
});

test('importing the package loads no slow built-in module', () => {
  expect(loaded.builtIn.filter((name) => HEAVY.test(name))).toEqual([]);
});

test('importing the package loads only the used files', () => {
  const used = loadedBy(`
    require('./lib/index.ts').resolveConfig({ train_batch_size: 1 }, { worldSize: 1 });
    require('./lib/launch/validate.ts');
    require('node:child_process')`);
  expect(packagesOf(used)).toEqual(expect.arrayContaining(['ajv']));
  expect(used.files).toContain('lib/launch/validate.ts');
  expect(used.builtIn).toContain('child_process');
});

test('import and require give the same objects under the same names', () => {
  const program = `
    import { createRequire } from 'node:module';
    const { default: _, ...door } = await import('./dist/index.mjs');
    const whole = createRequire(process.cwd() + '/dist/')('./index.js');
    const names = Object.keys(whole).sort();
    console.log(Object.keys(door).sort().join() === names.join());
    console.log(names.every((name) => door[name] === whole[name]));`;
  const words = ['--input-type=module', '-e', program];
  const { stdout, stderr } = spawnSync(process.execPath, words, { cwd: ROOT, encoding: 'utf8' });
  expect([stdout.trim().split('\n'), stderr]).toEqual([['true', 'true'], '']);
});

test('the file of the command has executable bits', () => {
  expect(statSync(join(ROOT, 'dist/launch/cli.js')).mode & 0o111).toBe(0o111);
});

test('ds serve and ds chat print their options without loading tensors', () => {
  const { files } = loadedBy(`
    const { Command } = require('commander');
    const { addServeCommands } = require('./lib/launch/serve-commands.ts');
    addServeCommands(new Command(), 'Inference:', async () => {})`);
  expect(files.filter((file) => /^lib\/(tensor|nn|models)\//.test(file))).toEqual([]);
  expect(files).toContain('lib/inference/sampling-options.ts');
});
