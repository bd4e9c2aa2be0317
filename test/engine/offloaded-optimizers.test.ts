// offload_optimizer.gpu_share needs an optimizer that updates single elements.
import { initialize } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { tinyConfig, tinyModel } from '../e2e/tiny-training.js';
import { refusal } from '../support/refusal.js';

const configOf = (type: 'AdamW' | 'Muon' | 'Lamb', share?: number) => {
  const config = tinyConfig({
    precision: 'bf16',
    offload: true,
    optimizer: { type, params: { lr: 1e-3 } },
  });
  const zero = config.zero_optimization as { offload_optimizer: object };
  if (share !== undefined) Object.assign(zero.offload_optimizer, { gpu_share: share });
  return config;
};

test.each(['Muon', 'Lamb'] as const)('%s with a share is refused', async (type) => {
  const config = configOf(type, 0.5);
  const error = await refusal(() => initialize({ model: tinyModel(), config, device: cpu() }));
  expect(error).toMatchObject({
    code: 'DS_CONFIG',
    op: expect.stringContaining('gpu_share'),
    expected: 'an elementwise optimizer, such as AdamW',
  });
});

test.each([
  ['AdamW', 0.5],
  ['Muon', 0],
  ['Muon', undefined],
] as const)('%s with the share %j is built', async (type, share) => {
  const config = configOf(type, share);
  const { engine } = await initialize({ model: tinyModel(), config, device: cpu() });
  engine.destroy();
});
