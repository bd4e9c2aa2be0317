// Every example answers --help with its usage, starts nothing and writes nothing.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = packageRoot();
/** Modules of examples, which are no programs. */
const PARTS = new Set([
  'gpt2-options.js',
  'gpt2-text.js',
  'gpt2-tokenizer.js',
  'megatron-flags.js',
]);

const programs = readdirSync(join(root, 'examples'))
  .filter((name) => /\.(js|ts)$/.test(name) && !PARTS.has(name))
  .map((name) =>
    name.endsWith('.ts') ? `build/js/examples/${name.slice(0, -3)}.js` : join('examples', name),
  );

let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-help-'));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

test.each(programs)('%s --help prints its usage', (program) => {
  for (const flag of ['--help', '-h']) {
    const { status, stdout, stderr } = spawnSync(process.execPath, [join(root, program), flag], {
      encoding: 'utf8',
      cwd: folder,
      timeout: 120_000,
    });
    expect(stderr).toBe('');
    expect(status).toBe(0);
    const [first = '', ...rest] = stdout.trimEnd().split('\n');
    expect(first).toContain(basename(program));
    expect(rest.length).toBeGreaterThan(0);
    expect(readdirSync(folder)).toEqual([]);
  }
});

test('the folder has examples', () => {
  expect(programs.length).toBeGreaterThanOrEqual(10);
});
