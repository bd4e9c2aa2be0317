// The paged cache of latent attention: what a token takes, and when keys and values are cached.

import { initInference, nn } from '../../lib/index.js';
import { blockBytes } from '../../lib/inference/paged-cache.js';
import { addLora } from '../../lib/peft/index.js';
import { folderOf } from '../models/family-rows.js';

const modelOf = () => nn.models.fromPretrained(folderOf('deepseek-v3'), { dtype: 'f32' });

test('a token has the latent and the rotated channels of the key', async () => {
  const model = await modelOf();
  const { latent, layers, heads, headDim } = model.config as nn.models.RotarySizes;
  const width = (latent?.keyRank ?? 0) + (latent?.rotaryDim ?? 0);
  const bytesOf = (shape: ReturnType<typeof model.cacheShape>) =>
    blockBytes({ ...shape, blockSize: 16 });
  expect(bytesOf(model.pagedShape())).toBe(layers * 16 * width * 4);
  expect(bytesOf(model.cacheShape())).toBe(layers * 16 * 2 * heads * headDim * 4);
});

test('with adapters or quantized weights the cache has keys and values', async () => {
  const model = await modelOf();
  addLora(model, { r: 2, targetModules: ['kv_b_proj'] });
  expect(model.pagedShape()).toEqual(model.cacheShape());
  const packed = await modelOf();
  nn.quantizeModel(packed, { bits: 8, groupSize: null });
  expect(packed.pagedShape()).toEqual(packed.cacheShape());
});

test('an engine with 8-bit weights generates', async () => {
  const config = {
    dtype: 'fp32',
    device: 'cpu',
    quant: { enabled: true, weight: { num_bits: 8 } },
  };
  const engine = await initInference(folderOf('deepseek-v3'), {
    ...config,
    max_out_tokens: 32,
  } as never);
  const [text] = await engine.generate({ prompt: [5, 6, 7], maxNewTokens: 6, ignoreEos: true });
  expect(text?.tokens).toHaveLength(6);
  await engine.destroy();
});
