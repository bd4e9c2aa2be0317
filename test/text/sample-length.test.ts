// Lengths of samples that no memory holds.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TextDataset, TextStream } from '../../lib/text/index.js';
import { buildSample } from '../../lib/text/sample.js';
import { tokenizer } from '../serve/fake-engine.js';

test('a length of 2^40 tokens is refused with its option', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-length-'));
  const files = join(dir, 'a.jsonl');
  writeFileSync(files, '{"text":"one"}\n');
  const options = { files, tokenizer, length: 2 ** 40, threads: 0 };
  for (const open of [TextDataset.open(options), TextStream.open(options)]) {
    await expect(open).rejects.toMatchObject({
      code: 'DS_ARGUMENT',
      message: expect.stringMatching(
        /length: expected an integer of 2 to 2147483647, got 109951162/,
      ),
    });
  }
  rmSync(dir, { recursive: true });
});

test('a sample that no memory holds is an error with a fix', () => {
  const run = { ids: Int32Array.of(1), labels: Int32Array.of(1) };
  expect(() => buildSample(run, [], 2 ** 40, 0)).toThrow(
    expect.objectContaining({ code: 'DS_OUT_OF_MEMORY', hint: 'Lower `length`.' }),
  );
});
