// Compares Llama with its formulas in doubles: logits, losses, gradients, sampling, activation
// checkpointing.
import assert from 'node:assert/strict';
import { nn } from '../../lib/index.js';
import { joinMemory } from '../../lib/nn/joined-linears.js';
import type { Device } from '../../lib/runtime/device.js';
import { setGradTarget } from '../../lib/tensor/grad-sink.js';
import { liveTensors, noGrad, scope, seed, Tensor } from '../../lib/tensor/index.js';
import { forceJointGradients } from '../../lib/tensor/ops/joint-gradients.js';
import type { Case } from '../support/case.js';
import { countOps } from '../support/op-counts.js';
import { under } from '../tensor/segments.js';
import { relativeError } from './golden.js';
import { logitsOf, lossOf, type Sizes, type Weights } from './llama-formulas.js';

const { Llama, generate } = nn.models;

type Config = nn.models.LlamaConfig;

const small: Config = {
  vocabSize: 67,
  maxSeq: 24,
  layers: 2,
  heads: 4,
  channels: 24,
  hidden: 40,
  initializerRange: 0.3,
};
const tokens = [3, 1, 41, 5, 9, 2, 65, 35, 8, 0, 66];
const targets = [1, 41, 5, 9, 2, 65, 35, 8, 0, 66, 7];

/** Llama 3.1's formula by wavelength, as its authors wrote it. */
function llama3(frequency: number): number {
  const [factor, low, high, original] = [8, 1, 4, 12];
  const wave = (2 * Math.PI) / frequency;
  if (wave < original / high) return frequency;
  if (wave > original / low) return frequency / factor;
  const smooth = (original / wave - low) / (high - low);
  return ((1 - smooth) * frequency) / factor + smooth * frequency;
}

interface Variant {
  name: string;
  config: Partial<Config>;
  /** Scales an unscaled frequency. */
  scaling?: (frequency: number) => number;
}

const variants: readonly Variant[] = [
  { name: 'plain', config: {} },
  { name: 'grouped heads, wide ones', config: { kvHeads: 2, headDim: 10 } },
  { name: 'one head of keys, tied', config: { kvHeads: 1, tied: true } },
  { name: 'biases, another eps', config: { attentionBias: true, mlpBias: true, eps: 1e-3 } },
  {
    name: 'linear scaling, another base',
    config: { ropeTheta: 500, ropeScaling: { type: 'linear', factor: 4 } },
    scaling: (frequency) => frequency / 4,
  },
  {
    name: 'llama3 scaling',
    config: {
      ropeTheta: 100,
      headDim: 12,
      ropeScaling: {
        type: 'llama3',
        factor: 8,
        lowFreqFactor: 1,
        highFreqFactor: 4,
        originalMaxSeq: 12,
      },
    },
    scaling: llama3,
  },
];

/** Moves weights with one input next to each other, as they are in the memory of an engine. */
function placeTogether(model: nn.models.Llama): void {
  for (const { self_attn, mlp } of model.model.layers) {
    const { q_proj, k_proj, v_proj } = self_attn as unknown as Record<string, nn.Linear>;
    const { gate_proj, up_proj } = mlp as unknown as Record<string, nn.Linear>;
    for (const layers of [
      [q_proj, k_proj, v_proj],
      [gate_proj, up_proj],
    ] as nn.Linear[][]) {
      joinMemory(layers);
      placeGradients(layers.map(({ weight }) => weight));
    }
  }
}

/** Places the gradients of weights [outputs, inputs] next to each other. */
function placeGradients(weights: readonly Tensor[]): void {
  const rows = weights.reduce((sum, weight) => sum + weight.size(0), 0);
  const [first] = weights as [Tensor];
  const all = Tensor.empty([rows, first.size(1)], first.dtype, first.device);
  let start = 0;
  for (const weight of weights) {
    const part = all.narrow(0, start, weight.size(0));
    setGradTarget(weight, () => part);
    start += weight.size(0);
  }
}

/** A model without weights of exactly 0 or 1, and the sizes of its formulas. */
function build(variant: Variant, device: Device): { model: nn.models.Llama; sizes: Sizes } {
  seed(7);
  const model = new Llama({ ...small, ...variant.config });
  for (const [name, parameter] of model.namedParameters()) {
    if (/norm|bias/.test(name)) parameter.initialize(nn.init.uniform(0.4, 1.2));
  }
  const { heads, kvHeads, headDim, eps, layers, tied, ropeTheta } = model.config;
  const scaling = variant.scaling ?? ((frequency: number) => frequency);
  const frequency = (i: number): number => scaling(ropeTheta ** ((-2 * i) / headDim));
  return {
    model: model.to(device),
    sizes: { heads, kvHeads, headDim, eps, layers, tied, frequency },
  };
}

const weightsOf = (model: nn.Module): Map<string, number[]> =>
  new Map(Array.from(model.namedParameters(), ([name, values]) => [name, values.toArray()]));

const rowOf = (values: readonly number[], device: Device): Tensor =>
  Tensor.from(Int32Array.from(values), { shape: [1, values.length], device });

function isClose(got: readonly number[], expected: readonly number[], bound: number): void {
  const largest = Math.max(...expected.map(Math.abs));
  assert.equal(got.length, expected.length);
  got.forEach((value, i) => {
    const difference = Math.abs(value - (expected[i] as number));
    assert.ok(difference <= bound * largest, `${value} at ${i}, not ${expected[i]}`);
  });
}

/** The derivative of the formulas' loss by each parameter, along a random direction. */
function derivative(weights: Weights, name: string, direction: number[], sizes: Sizes): number {
  const values = weights.get(name) as readonly number[];
  const step = 1e-5;
  const at = (sign: number): number => {
    const moved = values.map((value, i) => value + sign * step * (direction[i] as number));
    return lossOf(logitsOf(tokens, new Map(weights).set(name, moved), sizes), targets);
  };
  return (at(1) - at(-1)) / (2 * step);
}

function llamaCase(name: string, body: (device: Device) => void): Case {
  return { name: `Llama: ${name}`, run: (device) => scope(() => body(device)) };
}

function parity(variant: Variant, device: Device): void {
  const { model, sizes } = build(variant, device);
  const weights = weightsOf(model);
  const expected = logitsOf(tokens, weights, sizes);
  const logits = noGrad(() => model.call(rowOf(tokens, device)));
  assert.deepEqual(logits.shape, [1, tokens.length, small.vocabSize]);
  isClose(logits.contiguous().toArray(), expected.flat(), 1e-5);
  const loss = model.call(rowOf(tokens, device), rowOf(targets, device));
  isClose([loss.item()], [lossOf(expected, targets)], 1e-6);
  loss.backward();
  for (const [name, { grad, numel }] of model.namedParameters()) {
    const direction = Array.from({ length: numel }, (_, i) => Math.sin(1 + 3 * i));
    const along = (grad as Tensor)
      .toArray()
      .reduce((sum, g, i) => sum + g * (direction[i] as number), 0);
    const expected = derivative(weights, name, direction, sizes);
    const difference = Math.abs(along - expected);
    assert.ok(
      difference <= 2e-4 * Math.max(Math.abs(expected), 0.05),
      `${name}: ${along}, not ${expected}`,
    );
  }
}

export const cases: Case[] = [
  ...variants.map((variant) =>
    llamaCase(`logits, loss and gradients by the formulas (${variant.name})`, (device) =>
      parity(variant, device),
    ),
  ),
  llamaCase('a step of cached sampling is a forward of all tokens', (device) => {
    for (const variant of variants) {
      const { model } = build(variant, device);
      const prompt = tokens.slice(0, 4);
      const options = { maxNewTokens: 20, temperature: 0 };
      // The first call creates the rotary table, which stays.
      generate(model, prompt, { maxNewTokens: 1 });
      const before = liveTensors();
      const cached = model.generate(prompt, options);
      assert.equal(liveTensors(), before, variant.name);
      const plain = [...prompt];
      while (plain.length < 24) {
        const next = (): number => model.call(rowOf(plain, device)).select(1, -1).argmax().item();
        plain.push(noGrad(() => scope(next)));
      }
      assert.deepEqual(cached, plain, variant.name);
    }
  }),
  llamaCase('activation checkpointing changes no bit', (device) => {
    const gradients = (more: Partial<Config>): Map<string, number[]> => {
      const { model } = build({ name: '', config: { kvHeads: 2, ...more } }, device);
      const loss = model.call(rowOf(tokens, device), rowOf(targets, device));
      loss.backward();
      const found = Array.from(model.namedParameters(), ([name, { grad }]) => {
        return [name, (grad as Tensor).toArray()] as const;
      });
      return new Map([['loss', [loss.item()]], ...found]);
    };
    const plain = gradients({});
    assert.deepEqual(gradients({ activationCheckpointing: true }), plain);
    assert.deepEqual(gradients({ activationCheckpointing: true, numberCheckpoints: 1 }), plain);
  }),
  ...[false, true].flatMap((cpuCheckpointing) => {
    const where = cpuCheckpointing ? 'in host memory' : 'on the device';
    return [false, true].map((keepLast) =>
      llamaCase(`projections kept ${where}${keepLast ? ', last segment kept' : ''}`, (device) => {
        const options = { cpuCheckpointing, keepAttention: true, keepLastSegment: keepLast };
        /** Gradients, and the ops of the backward. */
        const run = (keepProjections: boolean): [number[][], Record<string, number>] =>
          under({ ...options, keepProjections }, () => {
            const config = { kvHeads: 2, layers: 3, activationCheckpointing: true };
            const { model } = build({ name: '', config }, device);
            const loss = model.call(rowOf(tokens, device), rowOf(targets, device));
            const counts = countOps(() => loss.backward());
            return [model.parameters().map(({ grad }) => (grad as Tensor).toArray()), counts];
          });
        const [again, all] = run(false);
        const [kept, fewer] = run(true);
        assert.deepEqual(kept, again);
        const segments = keepLast ? 2 : 3;
        const saved = (op: string): number => (all[op] ?? 0) - (fewer[op] ?? 0);
        // Of queries, keys, values and outputs; of queries and keys.
        assert.equal(saved('Matmul'), 4 * segments);
        assert.equal(saved('Rope'), 2 * segments);
      }),
    );
  }),
  ...['f32', 'bf16'].map((dtype) =>
    llamaCase(`one product for the gradient of a shared input, ${dtype}`, (device) => {
      /** Gradients by name, and the ops of the backward. */
      const run = (
        on: boolean | null,
        areAdjacent: boolean,
        more: Partial<Config> = {},
      ): [Map<string, number[]>, Record<string, number>] => {
        const config = { kvHeads: 2, channels: 64, headDim: 16, hidden: 128, ...more };
        const { model } = build({ name: '', config }, device);
        model.to(device, dtype as 'f32' | 'bf16');
        if (areAdjacent) placeTogether(model);
        forceJointGradients(on);
        try {
          const loss = model.call(rowOf(tokens, device), rowOf(targets, device));
          const counts = countOps(() => loss.backward());
          const values = Array.from(
            model.namedParameters(),
            ([name, { grad }]) => [name, (grad as Tensor).toArray()] as const,
          );
          return [new Map(values), counts];
        } finally {
          forceJointGradients(null);
        }
      };
      const [plain, all] = run(false, true);
      const [apart, same] = run(true, false);
      const [joint, fewer] = run(true, true);
      // In each of two layers: keys, values and the up projection for the input; of the weights,
      // keys and the up projection.
      assert.equal(same.Matmul, all.Matmul);
      assert.equal((all.Matmul ?? 0) - (fewer.Matmul ?? 0), 10);
      assert.ok(joint.size > 15);
      const [far, near] = dtype === 'f32' ? [1e-5, 1e-6] : [0.03, 0.03];
      for (const [name, values] of plain) {
        assert.ok(relativeError(joint.get(name) as number[], values) < far, name);
        assert.ok(relativeError(apart.get(name) as number[], values) < near, name);
      }
      const again = run(true, true, { activationCheckpointing: true });
      assert.deepEqual(again[0], joint);
      const accumulated = run(true, true, { attentionBias: true, mlpBias: true });
      assert.equal(accumulated[1].Matmul, all.Matmul);
    }),
  ),
  llamaCase('sizes that cannot be are named', (device) => {
    const expectRefusal = (more: object, message: RegExp) =>
      assert.throws(() => new Llama({ ...small, ...more }), { code: 'DS_ARGUMENT', message });
    expectRefusal({ layers: 0 }, /Llama layers/);
    expectRefusal({ kvHeads: 3 }, /kvHeads: expected a divisor of 4 heads, got 3/);
    expectRefusal({ headDim: 5 }, /headDim: expected an even width/);
    expectRefusal({ heads: 5 }, /headDim: expected an even width.*got 4\.8/);
    expectRefusal({ ropeScaling: { type: 'ntk', factor: 2 } }, /"linear", .*"llama3", got "ntk"/);
    expectRefusal({ ropeScaling: { type: 'yarn', factor: 2 } }, /ropeScaling\.originalMaxSeq/);
    expectRefusal({ ropeScaling: { type: 'linear', factor: 2, low: 1 } }, /"low"/);
    expectRefusal(
      {
        ropeScaling: {
          type: 'longrope',
          factor: 2,
          originalMaxSeq: 12,
          shortFactor: [1, 1, 1],
          longFactor: [1, 2],
        },
      },
      /longFactor: expected a list of 3 positive numbers/,
    );
    expectRefusal({ window: 4 }, /"window"/);
    expectRefusal({ attentionDropout: 1 }, /attentionDropout/);
    expectRefusal({ ropeScaling: { type: 'linear', factor: 0.5 } }, /ropeScaling\.factor/);
    expectRefusal({ tied: 'yes' }, /Llama tied/);
    expectRefusal({ dropout: 0.1 }, /"dropout"/);
    const { model } = build({ name: '', config: {} }, device);
    const long = Tensor.from(new Int32Array(25), { shape: [1, 25], device });
    assert.throws(() => model.call(long), { code: 'DS_SHAPE', message: /T <= 24/ });
  }),
];
