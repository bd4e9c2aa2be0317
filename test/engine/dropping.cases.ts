// Layers that steps leave out, and tokens that layers do not see: the same at every ZeRO stage,
// under offload and on every device.
import assert from 'node:assert/strict';
import { type DsConfig, initialize, nn, Tensor } from '../../lib/index.js';
import { cpu, type Device } from '../../lib/runtime/device.js';
import { chooseTokens, scope, seed } from '../../lib/tensor/index.js';
import { assertClose } from '../autograd/check.js';
import type { Case } from '../support/case.js';

const [ROWS, TOKENS, VOCABULARY, LAYERS, STEPS] = [3, 19, 67, 4, 6];
const sizes = { vocabSize: VOCABULARY, maxSeq: TOKENS, layers: LAYERS, heads: 2, channels: 32 };

const families: Record<string, () => nn.models.CausalLM> = {
  'GPT-2': () => new nn.models.GPT2({ ...sizes, dropout: 0.1 }),
  Llama: () => new nn.models.Llama({ ...sizes, kvHeads: 1, hidden: 48 }),
  'Llama, recomputed': () =>
    new nn.models.Llama({ ...sizes, hidden: 48, activationCheckpointing: true }),
};

const random_ltd = {
  enabled: true,
  total_layer_num: LAYERS,
  random_ltd_layer_num: 2,
  random_ltd_layer_id: [1, 2],
  random_ltd_schedule: {
    min_value: 5,
    max_value: TOKENS,
    schedule_type: 'fixed_linear',
    schedule_config: { require_steps: STEPS, seq_per_step: 1 },
  },
};

const sections: Record<string, object> = {
  'layers dropped': { progressive_layer_drop: { enabled: true, theta: 0.3, gamma: 1 } },
  'tokens dropped': {
    data_efficiency: { enabled: true, data_routing: { enabled: true, random_ltd } },
  },
};

const places: Record<string, object> = {
  'stage 1': { stage: 1 },
  'stage 2': { stage: 2 },
  'stage 3': { stage: 3 },
  offloaded: { stage: 2, offload_optimizer: { device: 'cpu' } },
  'weights offloaded': {
    stage: 3,
    offload_optimizer: { device: 'cpu' },
    offload_param: { device: 'cpu' },
  },
};

interface Run {
  build(): nn.models.CausalLM;
  section: object;
  bf16: boolean;
}

function batch(step: number, device: Device): Tensor[] {
  return [0, 1].map((shift) => {
    const ids = Int32Array.from({ length: ROWS * TOKENS }, (_, i) => (3 * i * i + step) % 61);
    const values = ids.map((id) => (id + shift) % VOCABULARY);
    return Tensor.from(values, { shape: [ROWS, TOKENS], device });
  });
}

/** The loss of each step, and all weights after the last one. */
async function trainLosses(run: Run, device: Device, zero_optimization: object): Promise<number[]> {
  const config = {
    train_micro_batch_size_per_gpu: ROWS,
    optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
    bf16: { enabled: run.bf16 },
    gradient_clipping: 1,
    zero_optimization,
    ...run.section,
  } as DsConfig;
  seed(5);
  const { engine } = await initialize({ model: run.build(), config, device });
  try {
    seed(1);
    const losses = Array.from({ length: STEPS }, (_, step) =>
      scope(() => {
        const loss = engine.forward<Tensor>(...batch(step, device));
        engine.backward(loss);
        engine.step();
        return loss.item();
      }),
    );
    engine.synchronize();
    const weights = engine.withFullWeights(() =>
      engine.module.parameters().flatMap((parameter) => Array.from(parameter.to('f32').toArray())),
    );
    return [...losses, ...weights];
  } finally {
    engine.destroy();
  }
}

async function trainsAlike(run: Run, device: Device): Promise<void> {
  const first = await trainLosses(run, device, { stage: 0 });
  const fullValues = await trainLosses({ ...run, section: {} }, device, { stage: 0 });
  assert.notDeepEqual(first, fullValues, 'nothing was dropped');
  for (const [name, place] of Object.entries(places))
    assert.deepEqual(await trainLosses(run, device, place), first, name);
  if (device.kind === 'cpu') return;
  const onCpu = await trainLosses(run, cpu(), { stage: 0 });
  const tolerance = run.bf16 ? 3e-2 : 1e-3;
  assertClose(first.slice(0, STEPS), onCpu.slice(0, STEPS), tolerance, 'losses');
}

function drawsAlike(device: Device): void {
  scope(() => {
    for (const [rows, tokens, draws, chosen] of [
      [3, 5, 2, 2],
      [7, 1031, 3, 400],
      [1, 1, 1, 1],
    ] as [number, number, number, number][]) {
      const at = (where: Device): number[] => {
        seed(3);
        const like = Tensor.empty([rows, tokens], 'i32', where);
        return Array.from(chooseTokens({ rows, tokens, draws, chosen }, like).toArray(), Number);
      };
      assert.deepEqual(at(device), at(cpu()), `${draws} x ${rows}: ${chosen} of ${tokens}`);
    }
  });
}

const runs = Object.entries(sections).flatMap(([what, section]) =>
  Object.entries(families).flatMap(([family, build]) =>
    [false, true].map((bf16) => ({ what, family, run: { build, section, bf16 } })),
  ),
);

export const cases: Case[] = [
  ...runs.map(({ what, family, run }) => ({
    name: `${what}, ${family}, ${run.bf16 ? 'bf16' : 'fp32'}: stages and offload train alike`,
    run: (device: Device) => trainsAlike(run, device),
  })),
  { name: 'every device draws the same tokens for a layer', run: drawsAlike },
];
