// Activation checkpointing changes no bit in any mode: the same gradients, losses and weights,
// dropout on.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { liveTensors, scope, seed, type Tensor } from '../../lib/tensor/index.js';
import * as checkpointing from '../../lib/tensor/recompute/index.js';
import type { Case } from '../support/case.js';
import { countOps } from '../support/op-counts.js';
import { quiet } from '../support/quiet.js';
import {
  type Precision,
  type TinyOptions,
  tinyBatch,
  tinyEngine,
  tinyModel,
  trainTiny,
  weightBits,
} from './tiny-training.js';

type Counts = Record<string, number>;

interface Mode {
  name: string;
  configure: checkpointing.CheckpointingOptions;
  model: TinyOptions['model'];
  /** The model that it must equal. Default: nothing checkpointed. */
  plain?: TinyOptions['model'];
  /** 16-bit gradients of several micro-batches differ in the last bit. */
  rounds?: boolean;
}

/** An odd number of blocks, so that segments differ in length. */
const layers = 5;

const modes: Mode[] = [
  { name: 'full', configure: {}, model: { activationCheckpointing: true } },
  {
    name: 'attention kept',
    configure: { keepAttention: true },
    model: { activationCheckpointing: true },
  },
  {
    name: 'number_checkpoints 2',
    configure: { numberCheckpoints: 2 },
    model: { activationCheckpointing: true },
  },
  {
    name: 'attention kept, projections of two segments too',
    configure: { keepAttention: true, keepProjections: 2, keepLastSegment: true },
    model: { activationCheckpointing: true },
  },
  {
    name: 'cpu_checkpointing',
    configure: { cpuCheckpointing: true },
    model: { activationCheckpointing: true },
  },
  {
    name: 'cpu_checkpointing, 2 segments, profile, synchronize',
    configure: { cpuCheckpointing: true, profile: true, synchronize: true },
    model: { activationCheckpointing: true, numberCheckpoints: 2 },
  },
  {
    name: 'cpu_checkpointing, attention kept',
    configure: { cpuCheckpointing: true, keepAttention: true },
    model: { activationCheckpointing: true, numberCheckpoints: 3 },
  },
  {
    name: 'last segment kept',
    configure: { keepLastSegment: true, numberCheckpoints: 3 },
    model: { activationCheckpointing: true },
  },
  {
    name: 'cpu_checkpointing, attention and last segment kept',
    configure: { cpuCheckpointing: true, keepAttention: true, keepLastSegment: true },
    model: { activationCheckpointing: true },
  },
  {
    name: 'last segment kept, early head',
    configure: { keepAttention: true, keepLastSegment: true, earlyHead: true },
    model: { activationCheckpointing: true },
    rounds: true,
  },
  {
    name: 'selective',
    configure: {},
    model: { activationCheckpointing: 'selective' },
    plain: { fusedGelu: false },
  },
];

const exact = modes.filter(({ rounds }) => !rounds);

/** Runs `body` with checkpointing configured for `mode`, and restores the defaults. */
async function withMode<T>(mode: Mode, body: () => T | Promise<T>): Promise<T> {
  checkpointing.configure(mode.configure);
  try {
    return await body();
  } finally {
    checkpointing.reset();
  }
}

/** The bits of every gradient after two micro-batches, by name. */
function gradientBits(
  model: TinyOptions['model'],
  dtype: 'f32' | 'bf16',
  device: Device,
): Map<string, string> {
  seed(77);
  const gpt2 = tinyModel({ dropout: 0.1, model: { layers, ...model } }).to(device, dtype);
  for (const micro of [0, 1]) {
    const { tokens, targets } = tinyBatch(micro, device);
    scope(() => gpt2.call(tokens, targets).backward());
    tokens.dispose();
    targets.dispose();
  }
  const bits = new Map<string, string>();
  for (const [name, parameter] of gpt2.namedParameters()) {
    assert.ok(parameter.grad, name);
    bits.set(name, Buffer.from(parameter.grad.toRaw().buffer).toString('base64'));
    parameter.grad.release();
    parameter.grad = null;
    parameter.dispose();
  }
  return bits;
}

function sameBits(got: Map<string, string>, expected: Map<string, string>): void {
  assert.deepEqual([...got.keys()], [...expected.keys()]);
  for (const [name, bits] of got) assert.equal(bits, expected.get(name), name);
}

function gradientCase(mode: Mode, dtype: 'f32' | 'bf16'): Case {
  return {
    name: `gradients with checkpointing (${mode.name}) equal those without, ${dtype}, dropout`,
    async run(device) {
      device.setDeterministic(true);
      const expected = gradientBits(mode.plain ?? {}, dtype, device);
      sameBits(await withMode(mode, () => gradientBits(mode.model, dtype, device)), expected);
    },
  };
}

type Place = 'resident' | 'offloaded' | 'speculative';

function trainingCase(mode: Mode, precision: Precision, place: Place): Case {
  const where = { offload: place !== 'resident', speculative: place === 'speculative' };
  return {
    name: `training with checkpointing (${mode.name}) equals none, ${precision}, ${place}, 4 steps`,
    async run(device) {
      device.setDeterministic(true);
      const train = async (
        model: TinyOptions['model'],
      ): Promise<[number[], Map<string, string>]> => {
        const engine = await tinyEngine(
          { precision, ...where, dropout: 0.1, accumulation: 2, model: { layers, ...model } },
          device,
        );
        const losses = trainTiny(engine, 0, 4);
        const bits = weightBits(engine);
        engine.destroy();
        return [losses, bits];
      };
      const [losses, bits] = await train(mode.plain ?? {});
      const [again, same] = await withMode(mode, () => train(mode.model));
      assert.deepEqual(again, losses);
      sameBits(same, bits);
    },
  };
}

/** The ops of a forward and of its backward, by name, and the gradients. */
interface Passes {
  forward: Counts;
  backward: Counts;
  gradients: (readonly number[])[];
}

function countPasses(device: Device): Passes {
  seed(78);
  const gpt2 = tinyModel({ model: { layers, activationCheckpointing: true } }).to(device, 'f32');
  const { tokens, targets } = tinyBatch(0, device);
  const passed: Tensor[] = [];
  const forward = countOps(() => passed.push(scope(() => gpt2.call(tokens, targets))));
  const [loss] = passed as [Tensor];
  const backward = countOps(() => scope(() => loss.backward()));
  loss.dispose();
  const gradients = gpt2.parameters().map(({ grad }) => {
    const values = grad?.toArray() ?? [];
    grad?.dispose();
    return values;
  });
  for (const each of [tokens, targets, ...gpt2.parameters()]) each.dispose();
  return { forward, backward, gradients };
}

const opsOfSegments: Case = {
  name: 'norms add the sums between segments, and kept projections are not computed again',
  async run(device) {
    await quiet();
    const tensors = liveTensors();
    const counted = (configure: checkpointing.CheckpointingOptions) =>
      withMode({ name: '', configure, model: {} }, () => countPasses(device));
    const plain = await counted({ keepAttention: true });
    const onHost = await counted({ keepAttention: true, cpuCheckpointing: true });
    // Host memory receives inputs before the next segment runs, so kernels of their own add them.
    const adds = (counts: { forward: Counts }): number => counts.forward.Binary ?? 0;
    assert.equal(adds(onHost) - adds(plain), layers - 1);
    const some = await counted({ keepAttention: true, keepProjections: 2 });
    const all = await counted({ keepAttention: true, keepProjections: true });
    const products = ({ backward }: { backward: Counts }): number => backward.Matmul ?? 0;
    assert.deepEqual(
      [products(plain) - products(some), products(plain) - products(all)],
      [2, layers],
    );
    const kept = { keepAttention: true, keepLastSegment: true };
    const last = await counted(kept);
    assert.equal(products(last) - products(await counted({ ...kept, keepProjections: 2 })), 2);
    for (const { gradients } of [onHost, some, all, last]) {
      assert.deepEqual(gradients, plain.gradients);
    }
    assert.equal(liveTensors(), tensors);
  },
};

export const cases: Case[] = [
  opsOfSegments,
  ...modes.map((mode) => gradientCase(mode, 'f32')),
  ...exact.map((mode) => gradientCase(mode, 'bf16')),
  ...exact.map((mode) => trainingCase(mode, 'bf16', 'offloaded')),
  ...modes.slice(0, 3).map((mode) => trainingCase(mode, 'fp32', 'speculative')),
  trainingCase(modes[0] as Mode, 'bf16', 'resident'),
];
