// Runs the first program of a page about inference, beside a tiny model that it opens as 'model'.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed, text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { writeProgram } from './page-program.js';
import { readPage, snippetsOf } from './snippets.js';

/** Returns what the program prints. Fails if it ends with another status than 0 or an error. */
export async function runOnTinyModel(page: string, maxSeq: number): Promise<string> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-page-'));
  try {
    const from = join(packageRoot(), 'examples', 'tokenizer');
    const { vocabSize } = text.Tokenizer.fromPretrained(from);
    seed(1);
    const sizes = { vocabSize, maxSeq, layers: 1, heads: 2, channels: 16 };
    await new nn.models.GPT2(sizes).save(join(dir, 'model'));
    cpSync(from, join(dir, 'model'), { recursive: true });
    const [program] = snippetsOf(page, readPage(page), ['js']);
    const file = writeProgram(dir, String(program?.code));
    const run = spawnSync(process.execPath, [file], { cwd: dir, encoding: 'utf8' });
    assert.deepEqual([run.status, run.stderr.match(/^\w*Error.*/m)], [0, null], run.stderr);
    return run.stdout;
  } finally {
    rmSync(dir, { recursive: true });
  }
}
