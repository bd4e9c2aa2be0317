// Writes a GPT-2 for transformers, with our logits beside it: run this with DIR, then scripts/check-consolidated.py DIR.
import { rmSync } from 'node:fs';
import { join } from 'node:path';

import { consolidate, findLatest } from '../../lib/checkpoint/index.js';
import { writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { initialize, nn, noGrad, scope, seed, Tensor } from '../../lib/index.js';

const BATCH = 2;
const SEQ = 64;

async function main(): Promise<void> {
  const [folder = '.', name = '124M', device = 'auto'] = process.argv.slice(2);
  seed(1234);
  const shape = nn.models.GPT2.config(name);
  const model = new nn.models.GPT2(shape);
  const config = { train_batch_size: 1, optimizer: { type: 'AdamW' } } as const;
  const { engine } = await initialize({ model, config, device });
  const checkpoints = join(folder, 'checkpoints');
  await engine.saveCheckpoint(checkpoints);
  console.log(`saved ${await findLatest(checkpoints)}`);
  for (const [out, maxShardBytes] of [
    ['whole', 5e9],
    ['sharded', 2e7],
  ] as const) {
    rmSync(join(folder, out), { recursive: true, force: true });
    const { files } = await consolidate(checkpoints, join(folder, out), { maxShardBytes });
    console.log(`${out}: ${files.length} files`);
  }
  const ids = Int32Array.from({ length: BATCH * SEQ }, (_, i) => (i * 7919 + 13) % shape.vocabSize);
  const tokens = Tensor.from(ids, { shape: [BATCH, SEQ], device: engine.device });
  const logits = noGrad(() => scope(() => model.call(tokens).contiguous()));
  await writeSafetensors(join(folder, 'logits.safetensors'), [
    { name: 'tokens', dtype: 'i32', shape: tokens.shape, values: tokens },
    { name: 'logits', dtype: 'f32', shape: logits.shape, values: logits },
  ]);
  engine.destroy();
}

void main();
