// offload_optimizer.gpu_share needs an optimizer that updates single elements, and the optimizer
// and the number of ranks decide how state is updated.
import type { ProcessGroup } from '../../lib/comm/process-group.js';
import type { ResolvedConfig } from '../../lib/config/index.js';
import { ReleaseStack } from '../../lib/engine/release-stack.js';
import { buildState } from '../../lib/engine/setup/optimizer-state.js';
import { initialize } from '../../lib/index.js';
import type { Optimizer } from '../../lib/optim/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { OptimizerState } from '../../lib/zero/optimizer-state.js';
import type { Partition } from '../../lib/zero/partition.js';
import { tinyConfig, tinyEngine, tinyModel } from '../e2e/tiny-training.js';
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

// A single rank exchanges nothing, and its parameters are whole.
test.each([
  ['AdamW', ['DeferredUpdates', 'DeferredUpdates']],
  ['OneBitAdam', ['DeferredUpdates', 'ExchangedUpdates']],
  ['Muon', ['DeferredUpdates', 'GatheredUpdates']],
  ['Lamb', ['DeferredUpdates', 'SummedUpdates']],
] as const)('%s is updated on one and on two ranks by %j', async (type, expected) => {
  const stage = type === 'OneBitAdam' ? 0 : 1;
  const options = { precision: 'fp32', offload: false, zero: { stage } } as const;
  const optimizer = { type, params: { lr: 1e-3 } } as const;
  const engine = await tinyEngine({ ...options, optimizer }, cpu());
  const { config, parts } = engine as unknown as {
    config: ResolvedConfig;
    parts: { stage: { partitions: Partition[] }; optimizer: Optimizer };
  };
  const { partitions } = parts.stage;
  const names = [1, 2].map((size) => {
    const [state, owned] = [new OptimizerState(), new ReleaseStack()];
    const group = { rank: 0, size } as ProcessGroup;
    const given = { config, optimizer: parts.optimizer, partitions, device: cpu(), group };
    buildState(state, given, owned);
    const [share] = state.updateGroups;
    owned.release();
    return share?.schedule.constructor.name;
  });
  expect(names).toEqual(expected);
  engine.destroy();
});
