// Every benchmark lists all of its options with --help and exits.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { optionTexts } from '../../bench/help.js';

const root = join(__dirname, '../..');
const HOOK = join(root, 'test/support/run-typescript.cjs');

const sourceOf = (file: string): string => readFileSync(join(root, 'bench', file), 'utf8');

/** Benchmarks and the modules that they are in, as main.ts has them. */
function benches(): [name: string, file: string][] {
  const main = sourceOf('main.ts');
  const files = new Map(
    [...main.matchAll(/import \{ (\w+Bench) \} from '\.\/([\w-]+)\.js'/g)].map(
      ([, made = '', file = '']) => [made, `${file}.ts`],
    ),
  );
  return [...main.matchAll(/^ {2}'?([\w-]+)'?: (\w+Bench),$/gm)].map(([, name = '', made = '']) => [
    name,
    files.get(made) as string,
  ]);
}

/** Names that a source reads from its Options. */
function optionsIn(source: string): string[] {
  const plain = [...source.matchAll(/\boptions(?:\.(\w+)|\['([\w-]+)'\])/g)];
  const taken = [
    ...source.matchAll(/\{([^{}]*)\}: Options\b/g),
    ...source.matchAll(/const \{([^{}]*)\} = options\b/g),
  ].flatMap(([, names = '']) => names.split(',').map((text) => text.split(/[:=]/)[0] as string));
  const numbers = [...source.matchAll(/= numbers\('(\w+)'/g)].map(([, name = '']) => name);
  const all = [...plain.map(([, name, quoted]) => name ?? quoted ?? ''), ...taken, ...numbers];
  return all.map((name) => name.trim().replaceAll("'", '')).filter((name) => name !== '');
}

test('there are benchmarks, and each has a module', () => {
  expect(benches().length).toBeGreaterThan(10);
  expect(Object.keys(optionTexts).sort()).toEqual(
    benches()
      .map(([name]) => name)
      .sort(),
  );
  const files = readdirSync(join(root, 'bench'));
  for (const [, file] of benches()) expect(files).toContain(file);
});

test.each(benches())('%s lists exactly the options that it reads', (name, file) => {
  const source = sourceOf(file);
  const shared = /from '\.\/(models|timed-updates)\.js'/.test(source)
    ? optionsIn(sourceOf('models.ts'))
    : [];
  const read = new Set([...optionsIn(source), ...shared]);
  expect(Object.keys(optionTexts[name] ?? {}).sort()).toEqual([...read].sort());
});

test.each(['train', 'quantization-quality'])('%s --help prints them and ends', (name) => {
  const main = join(root, 'bench/main.ts');
  const output = execFileSync(process.execPath, ['-r', HOOK, main, name, '--help'], {
    encoding: 'utf8',
    timeout: 120_000,
  });
  expect(output).toMatch(new RegExp(`^usage: npm run bench -- ${name} `));
  for (const option of Object.keys(optionTexts[name] ?? {}))
    expect(output).toContain(`--${option} `);
});
