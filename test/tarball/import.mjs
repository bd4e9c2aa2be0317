// Consumer of the installed package: ESM names resolve and the addon answers.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cpu, DsError, initialize, nn, Tensor, text, version } from '@ds/native';

assert.equal(typeof initialize, 'function');
assert.equal(typeof nn.models.GPT2, 'function');
assert.match(version, /^\d+\.\d+\.\d+/);
const x = Tensor.from([1, 2, 3], { device: cpu() });
assert.deepEqual([...(await x.read())], [1, 2, 3]);
x.dispose();
await assert.rejects(async () => x.read(), DsError);

// Text needs the package's dependencies, and a thread of its own.
const folder = mkdtempSync(join(tmpdir(), 'ds-text-'));
const model = { type: 'BPE', vocab: { a: 0, b: 1, ab: 2 }, merges: ['a b'] };
const parts = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
writeFileSync(
  join(folder, 'tokenizer.json'),
  JSON.stringify({ ...parts, added_tokens: [], model }),
);
writeFileSync(join(folder, 'rows.jsonl'), '{"text":"abba"}\n');
const files = join(folder, 'rows.jsonl');
const rows = await text.TextDataset.open({ files, tokenizer: folder, length: 4, threads: 1 });
assert.deepEqual([...rows.get(0).ids], [2, 1, 0, 0]);
rmSync(folder, { recursive: true });
