// The program about turns of docs/serving.md runs on a tiny model.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed, text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { writeProgram } from './page-program.js';
import { readPage, snippetsOf } from './snippets.js';

const PAGE = 'docs/serving.md';
const dir = mkdtempSync(join(tmpdir(), 'ds-turns-page-'));
afterAll(() => rmSync(dir, { recursive: true }));

test('the program of the page answers both clients', async () => {
  const from = join(packageRoot(), 'examples', 'tokenizer');
  const { vocabSize } = text.Tokenizer.fromPretrained(from);
  seed(1);
  const sizes = { vocabSize, maxSeq: 64, layers: 1, heads: 2, channels: 16 };
  await new nn.models.GPT2(sizes).save(join(dir, 'model'));
  cpSync(from, join(dir, 'model'), { recursive: true });
  const [program] = snippetsOf(PAGE, readPage(PAGE), ['js']);
  const file = writeProgram(dir, String(program?.code));
  const run = spawnSync(process.execPath, [file], { cwd: dir, encoding: 'utf8' });
  expect([run.status, run.stderr.match(/^\w*Error.*/m)]).toEqual([0, null]);
  expect(run.stdout).toMatch(/^\d \d+\n$/);
});
