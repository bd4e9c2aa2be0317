// Compares Phi-3 with a Llama of the same weights in separate projections, and with formulas in
// doubles for partial rotation: logits, losses, gradients, sampling, adapters.
import assert from 'node:assert/strict';
import { nn, peft } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { liveTensors, noGrad, scope, seed, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { logitsOf, lossOf, type Sizes, type Weights } from './llama-formulas.js';

const { generate, Llama, Mistral, Phi3 } = nn.models;

const small: nn.models.Phi3Config = {
  vocabSize: 67,
  maxSeq: 24,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  channels: 32,
  hidden: 40,
  initializerRange: 0.3,
};
const tokens = [3, 1, 41, 5, 9, 2, 65, 35, 8, 0, 66];
const targets = [1, 41, 5, 9, 2, 65, 35, 8, 0, 66, 7];
const [short, long] = [6, tokens.length];

/** Divisors for `pairs` pairs of channels, for texts of up to 6 tokens and for longer ones. */
const longrope = (pairs: number): nn.models.LongRopeScaling => ({
  type: 'longrope',
  factor: 4,
  originalMaxSeq: short,
  shortFactor: Array.from({ length: pairs }, (_, i) => 1 + 0.1 * i),
  longFactor: Array.from({ length: pairs }, (_, i) => 1.5 + 2 * i),
});

const rowOf = (values: readonly number[], device: Device): Tensor =>
  Tensor.from(Int32Array.from(values), { shape: [1, values.length], device });

function isClose(got: readonly number[], expected: readonly number[], bound: number): void {
  const largest = Math.max(...expected.map(Math.abs));
  assert.equal(got.length, expected.length);
  const worst = Math.max(...got.map((value, i) => Math.abs(value - (expected[i] as number))));
  assert.ok(worst <= bound * largest, `off by ${worst} of ${largest}`);
}

const valuesOf = (model: nn.Module): Map<string, number[]> =>
  new Map(Array.from(model.namedParameters(), ([name, values]) => [name, values.toArray()]));

const gradientsOf = (model: nn.Module): Map<string, number[]> =>
  new Map(Array.from(model.namedParameters(), ([name, { grad }]) => [name, grad?.toArray() ?? []]));

/** Joins separate matrices by rows, under the names of packed ones. */
function packWeights(apart: ReadonlyMap<string, number[]>): Map<string, number[]> {
  const found = new Map<string, number[]>();
  for (const [name, values] of apart) {
    const into = name
      .replace(/\.[qkv]_proj\./, '.qkv_proj.')
      .replace(/\.(gate|up)_proj\./, '.gate_up_proj.');
    found.set(into, [...(found.get(into) ?? []), ...values]);
  }
  return found;
}

/** Splits packed matrices. */
function unpackWeights(weights: Weights, model: nn.models.Phi3): Map<string, readonly number[]> {
  const { heads, kvHeads, headDim, channels } = model.config;
  const found = new Map<string, readonly number[]>();
  for (const [name, values] of weights) {
    const q = heads * headDim * channels;
    const cut = (as: string, from: string, ...range: [number, number?]) =>
      found.set(name.replace(from, as), values.slice(...range));
    if (name.includes('.qkv_proj.')) {
      const k = q + kvHeads * headDim * channels;
      cut('q_proj', 'qkv_proj', 0, q);
      cut('k_proj', 'qkv_proj', q, k);
      cut('v_proj', 'qkv_proj', k);
    } else if (name.includes('.gate_up_proj.')) {
      cut('gate_proj', 'gate_up_proj', 0, values.length / 2);
      cut('up_proj', 'gate_up_proj', values.length / 2);
    } else found.set(name, values);
  }
  return found;
}

const inWeights = <M extends nn.Module>(model: M, weights: ReadonlyMap<string, number[]>): M => {
  for (const [name, parameter] of model.namedParameters()) {
    const values = Tensor.from(Float32Array.from(weights.get(name) as number[]), {
      shape: parameter.shape,
      device: parameter.device,
    });
    noGrad(() => parameter.copy_(values));
    values.dispose();
  }
  return model;
};

interface Pair {
  name: string;
  /** A model with separate projections, and the same with packed ones. */
  make(): [nn.models.RotaryLM, nn.models.Phi3];
}

const pairs: readonly Pair[] = [
  { name: 'grouped heads', make: () => [new Llama(small), new Phi3(small)] },
  {
    name: 'a head for each, tied, wide heads',
    make: () => {
      const config = { ...small, kvHeads: 4, headDim: 12, tied: true, padTokenId: 5 };
      return [new Llama(config), new Phi3(config)];
    },
  },
  {
    name: 'a window',
    make: () => {
      const config = { ...small, window: 4 };
      return [new Mistral(config), new Phi3(config)];
    },
  },
  {
    name: 'longrope',
    make: () => {
      const config = { ...small, ropeScaling: longrope(4) };
      return [new Llama(config), new Phi3(config)];
    },
  },
];

/** Logits below and above the original length, and the loss and gradients of a text. */
function computeOutputs(model: nn.models.RotaryLM, device: Device) {
  const logits = [short, long].map((length) =>
    noGrad(() =>
      model
        .call(rowOf(tokens.slice(0, length), device))
        .contiguous()
        .toArray(),
    ),
  );
  const loss = model.call(rowOf(tokens, device), rowOf(targets, device));
  loss.backward();
  return { logits, loss: loss.item(), gradients: gradientsOf(model) };
}

function alike({ make }: Pair, device: Device): void {
  seed(7);
  const [apart, whole] = make().map((model) => model.to(device)) as [
    nn.models.RotaryLM,
    nn.models.Phi3,
  ];
  inWeights(whole, packWeights(valuesOf(apart)));
  const [wanted, got] = [computeOutputs(apart, device), computeOutputs(whole, device)];
  isClose(got.logits.flat(), wanted.logits.flat(), 1e-6);
  isClose([got.loss], [wanted.loss], 1e-6);
  const expected = packWeights(wanted.gradients);
  assert.deepEqual([...got.gradients.keys()].sort(), [...expected.keys()].sort());
  for (const [name, gradient] of got.gradients) {
    isClose(gradient, expected.get(name) as number[], 2e-6);
  }
}

interface Variant {
  name: string;
  config: Partial<nn.models.Phi3Config>;
  /** The rotation of a text of `length` tokens. */
  rule(length: number): Pick<Sizes, 'frequency' | 'rotaryDim' | 'magnitude'>;
}

const stretched = longrope(3);
const variants: readonly Variant[] = [
  {
    name: 'three quarters of each head',
    config: { partialRotaryFactor: 0.75, ropeTheta: 500 },
    rule: () => ({ rotaryDim: 6, frequency: (i) => 500 ** (-i / 3) }),
  },
  {
    name: 'three quarters of each head, longrope, tied',
    config: { partialRotaryFactor: 0.75, tied: true, ropeScaling: stretched },
    rule: (length) => {
      const divisors = length > short ? stretched.longFactor : stretched.shortFactor;
      return {
        rotaryDim: 6,
        frequency: (i) => 10_000 ** (-i / 3) / (divisors[i] as number),
        magnitude: Math.sqrt(1 + Math.log(4) / Math.log(short)),
      };
    },
  },
];

function build({ config }: Pick<Variant, 'config'>, device: Device): nn.models.Phi3 {
  seed(7);
  const model = new Phi3({ ...small, ...config });
  for (const [name, parameter] of model.namedParameters()) {
    if (name.includes('norm')) parameter.initialize(nn.init.uniform(0.4, 1.2));
  }
  return model.to(device);
}

function parity(variant: Variant, device: Device): void {
  const model = build(variant, device);
  const weights = valuesOf(model);
  const formulas = (length: number, input: Weights = weights) => {
    const sizes: Sizes = { ...model.config, ...variant.rule(length) };
    return logitsOf(tokens.slice(0, length), unpackWeights(input, model), sizes);
  };
  const { logits, loss, gradients } = computeOutputs(model, device);
  [short, long].forEach((length, i) => {
    isClose(logits[i] as number[], formulas(length).flat(), 1e-5);
  });
  isClose([loss], [lossOf(formulas(long), targets)], 1e-6);
  for (const [name, gradient] of gradients) {
    const direction = gradient.map((_, i) => Math.sin(1 + 3 * i));
    const at = (step: number): number => {
      const values = weights.get(name) as number[];
      const moved = values.map((value, i) => value + step * (direction[i] as number));
      return lossOf(formulas(long, new Map(weights).set(name, moved)), targets);
    };
    const expected = (at(1e-5) - at(-1e-5)) / 2e-5;
    const along = gradient.reduce((sum, g, i) => sum + g * (direction[i] as number), 0);
    const bound = 2e-4 * Math.max(Math.abs(expected), 0.05);
    assert.ok(Math.abs(along - expected) <= bound, `${name}: ${along}, not ${expected}`);
  }
}

const phiCase = (name: string, body: (device: Device) => void): Case => ({
  name: `Phi3: ${name}`,
  run: (device) => scope(() => body(device)),
});

/** Every kind of rotation, with and without a window; texts get longer than the original length. */
const all: readonly Partial<nn.models.Phi3Config>[] = [
  { window: 5 },
  ...variants.map(({ config }) => config),
];

export const cases: Case[] = [
  ...pairs.map((pair) =>
    phiCase(`what projections give that lie apart (${pair.name})`, (device) => alike(pair, device)),
  ),
  ...variants.map((variant) =>
    phiCase(`logits, loss and gradients by the formulas (${variant.name})`, (device) =>
      parity(variant, device),
    ),
  ),
  phiCase('a step of cached sampling is a forward of all tokens', (device) => {
    for (const config of all) {
      const model = build({ config }, device);
      const prompt = tokens.slice(0, 4);
      const options = { maxNewTokens: 16, temperature: 0 };
      generate(model, prompt, options); // The first call creates the rotary table, which stays.
      const before = liveTensors();
      const cached = model.generate(prompt, options);
      assert.equal(liveTensors(), before);
      const plain = [...prompt];
      while (plain.length < 20) {
        const next = (): number => model.call(rowOf(plain, device)).select(1, -1).argmax().item();
        plain.push(noGrad(() => scope(next)));
      }
      assert.deepEqual(cached, plain);
    }
  }),
  phiCase('activation checkpointing changes no bit, nor of what is dropped', (device) => {
    const gradients = (more: object): unknown => {
      const config = { partialRotaryFactor: 0.75, residualDropout: 0.3, ...more };
      const model = build({ config }, device);
      seed(9);
      const loss = model.call(rowOf(tokens, device), rowOf(targets, device));
      loss.backward();
      return [loss.item(), ...gradientsOf(model)];
    };
    const plain = gradients({});
    assert.deepEqual(gradients({ activationCheckpointing: true }), plain);
    assert.notDeepEqual(gradients({ residualDropout: 0 }), plain);
  }),
  phiCase('adapters of packed projections are merged into them', (device) => {
    const model = build({ config: {} }, device);
    const plain = computeOutputs(model, device).logits;
    const names = [...model.namedParameters()].map(([name]) => name);
    const adapters = (options: peft.LoraOptions) =>
      peft.lorasOf(peft.addLora(build({ config: {} }, device), options)).size;
    assert.equal(adapters({}), small.layers);
    assert.equal(adapters({ targetModules: 'all-linear' }), 4 * small.layers);
    const targetModules = ['qkv_proj', 'gate_up_proj', 'o_proj', 'down_proj'];
    peft.addLora(model, { r: 3, targetModules }).to(device);
    assert.equal(peft.lorasOf(model).size, 4 * small.layers);
    for (const [name, parameter] of model.namedParameters()) {
      if (name.includes('lora_B')) parameter.initialize(nn.init.normal(0.5));
    }
    const logits = () => noGrad(() => model.call(rowOf(tokens, device)).contiguous().toArray());
    const adapted = logits();
    assert.throws(() => isClose(adapted, plain[1] as number[], 1e-2));
    peft.merge(model);
    isClose(logits(), adapted, 1e-5);
    peft.unload(model);
    isClose(logits(), adapted, 1e-5);
    assert.deepEqual(
      [...model.namedParameters()].map(([name]) => name),
      names,
    );
  }),
  phiCase('a window of all positions is none, and is written as it was', (device) => {
    const model = build({ config: { window: 262_144 } }, device);
    // Blocks with random layerTokens reject a sliding window.
    const drawn = { layerTokens: { layers: [1], reserved: 5 } };
    assert.equal(model.call(rowOf(tokens, device), null, drawn).size(1), tokens.length);
    assert.equal(model.describe().config.sliding_window, 262_144);
    const narrow = build({ config: { window: 23 } }, device);
    assert.throws(() => narrow.call(rowOf(tokens, device), null, drawn), { code: 'DS_ARGUMENT' });
  }),
  phiCase('sizes that cannot be are named', () => {
    const expectRefusal = (more: object, message: RegExp) =>
      assert.throws(() => new Phi3({ ...small, ...more }), { code: 'DS_ARGUMENT', message });
    expectRefusal(
      { partialRotaryFactor: 0.4 },
      /Phi3 partialRotaryFactor: .*even number.*got 0\.4/,
    );
    expectRefusal({ partialRotaryFactor: 1.5 }, /partialRotaryFactor: .*8 channels/);
    expectRefusal({ partialRotaryFactor: 0 }, /partialRotaryFactor/);
    expectRefusal({ residualDropout: 1 }, /residualDropout/);
    expectRefusal({ ropeScaling: { type: 'linear', factor: 2 } }, /type "longrope", got "linear"/);
    expectRefusal({ ropeScaling: longrope(4), partialRotaryFactor: 0.75 }, /a list of 3 positive/);
    expectRefusal({ attentionBias: true }, /"attentionBias"/);
    assert.throws(
      () => new Llama({ ...small, partialRotaryFactor: 0.5 } as nn.models.LlamaConfig),
      {
        code: 'DS_ARGUMENT',
        message: /"partialRotaryFactor"/,
      },
    );
  }),
];
