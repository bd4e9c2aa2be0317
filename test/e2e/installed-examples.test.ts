// Runs the examples from an installed package, without development packages.
import { execFileSync, spawnSync } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = packageRoot();
const { dependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  dependencies: Record<string, string>;
};
let folder: string;
let examples: string;

/** Copies the package and adds links to its dependencies. */
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-installed-'));
  const modules = join(folder, 'node_modules');
  const localText = join(modules, '@ds', 'native');
  examples = join(localText, 'examples');
  const parts = ['package.json', 'dist', 'docs', 'examples', 'build/Release/ds_native.node'];
  for (const part of parts) cpSync(join(root, part), join(localText, part), { recursive: true });
  for (const name of Object.keys(dependencies)) {
    mkdirSync(dirname(join(modules, name)), { recursive: true });
    symlinkSync(join(root, 'node_modules', name), join(modules, name));
  }
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

const run = (name: string, ...words: string[]): string =>
  execFileSync(process.execPath, [join(examples, name), ...words], {
    encoding: 'utf8',
    cwd: folder,
    timeout: 300_000,
  });

test('the package is without development packages', () => {
  const find = (name: string): unknown => {
    const code = `require.resolve(${JSON.stringify(name)}, { paths: [${JSON.stringify(examples)}] })`;
    return spawnSync(process.execPath, ['-e', code], { cwd: folder }).status;
  };
  expect(find('@ds/native')).toBe(0);
  for (const name of ['gpt-tokenizer/encoding/r50k_base', 'typescript']) expect(find(name)).toBe(1);
});

test('examples read the package, Node and each other', () => {
  // gpt2-text.js tries to load these packages and works without them.
  const optional = /^(gpt-tokenizer\/\w+\/r50k_base|typescript)$/;
  const names = readdirSync(examples).filter((name) => /\.(js|ts)$/.test(name));
  const foreign = names.flatMap((name) => {
    const text = readFileSync(join(examples, name), 'utf8');
    const found = text.matchAll(/(?:require(?:\.resolve)?\(|from |import\()\s*'([^']+)'/g);
    return Array.from(found, ([, wanted = '']) => wanted)
      .filter(
        (expected) => !/^(node:|\.\/|@ds\/native$)/.test(expected) && !optional.test(expected),
      )
      .map((expected) => `${name}: ${expected}`);
  });
  expect(foreign).toEqual([]);
});

test('every example in JavaScript answers --help', () => {
  const parts = /^(gpt2-(options|text|tokenizer)|megatron-flags)\.js$/;
  const names = readdirSync(examples).filter((name) => name.endsWith('.js') && !parts.test(name));
  expect(names.length).toBeGreaterThanOrEqual(7);
  for (const name of names) expect(run(name, '--help')).toContain(name);
});

test('gpt2-offload trains on the pages of the package, and its folder continues texts', () => {
  const saved = join(folder, 'saved');
  const words = ['--steps', '3', '--seq', '32', '--batch', '2', '--sample', '4'];
  const out = run('gpt2-offload.js', ...words, '--device', 'cpu', '--save', saved);
  expect(out).toMatch(/^text: .*docs, 1,007 tokens of .*examples\/tokenizer$/m);
  expect(out).toMatch(/^sample: The /m);
  expect(out).toMatch(/loss \d+\.\d+ -> \d+\.\d+ in 3 steps/);
  const file = 'tokenizer.json';
  expect(readFileSync(join(saved, file))).toEqual(readFileSync(join(examples, 'tokenizer', file)));
  const text = run('generate.js', saved, 'The ', '--max_new_tokens', '4', '--device', 'cpu');
  expect(text).toMatch(/^The /);
});

test('gpt2-offload refuses a folder without a tokenizer', () => {
  const words = ['--tokenizer', join(folder, 'nothing'), '--device', 'cpu'];
  const { status, stderr } = spawnSync(
    process.execPath,
    [join(examples, 'gpt2-offload.js'), ...words],
    {
      encoding: 'utf8',
      cwd: folder,
    },
  );
  expect(status).toBe(1);
  expect(stderr).toMatch(/^DS_\w+: .*nothing/);
});
