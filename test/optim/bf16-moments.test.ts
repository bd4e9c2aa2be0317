// Tests AdamW's bf16 moments on the CPU, and the setting with an optimizer of the caller.
import { cpu, initialize, optim } from '../../lib/index.js';
import type { AdamGroup } from '../../lib/optim/adam-rule.js';
import type { ParamGroup, ParamsOf } from '../../lib/optim/param-groups.js';
import { tinyConfig, tinyModel } from '../e2e/tiny-training.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './bf16-moments.cases.js';

testOnCpu('moments of bf16', cases);

const start = (make: (params: ParamsOf<AdamGroup>) => optim.AdamW | optim.Sgd) =>
  initialize({
    model: tinyModel(),
    config: tinyConfig({ precision: 'bf16', offload: false, bf16States: true }),
    optimizer: (params: ParamsOf<ParamGroup>) => make(params as ParamsOf<AdamGroup>),
    device: cpu(),
  });

test('a custom optimizer keeps its state in bf16 too', async () => {
  await expect(start((params) => new optim.AdamW(params))).rejects.toMatchObject({
    code: 'DS_CONFIG',
    op: 'bf16.bf16_optimizer_states',
    got: 'AdamW with exp_avg in f32',
    hint: expect.stringContaining('fp32OptimizerStates: false'),
  });
  const { engine } = await start(
    (params) => new optim.AdamW(params, { fp32OptimizerStates: false }),
  );
  engine.destroy();
});

test('a rule without state needs none', async () => {
  const { engine } = await start((params) => new optim.Sgd(params as never, { lr: 0.1 }));
  engine.destroy();
});
