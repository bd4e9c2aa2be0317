// Training scenarios that are hard for sharded weights; each must give the same weights at every
// stage.
import assert from 'node:assert/strict';
import { type DsConfig, type Engine, nn, noGrad, peft, Tensor, zero } from '../../lib/index.js';
import { full } from '../../lib/tensor/index.js';
import { tinyBatch, tinyShape } from '../e2e/tiny-training.js';
import {
  AdaptedBlock,
  BorrowingNet,
  BufferedNet,
  FailingNet,
  FlatNet,
  MixedBlock,
  meanSquare,
  NestedNet,
  Net,
  PassingNet,
  SharingNet,
  TwiceBlock,
} from './shape-models.js';

export interface Scenario {
  name: string;
  model(): nn.Module;
  /** Default: step(), STEPS times. Returns values that must agree in addition to the weights. */
  train?(engine: Engine): number[];
  parameters?(model: nn.Module): nn.Parameter[];
  config?: Partial<DsConfig>;
  /** Stages 2 and 3 sum ranks before micro-batches, stages 0 and 1 after: they agree in pairs. */
  inPairs?: boolean;
}

const STEPS = 4;

/** This rank's rows of micro-batch `index`. */
function inputs({ globalRank: rank, device, config }: Engine, index: number): Tensor {
  const values = Float32Array.from({ length: 4 * 5 }, (_, i) =>
    Math.sin(1 + i * 1.7 + rank * 0.9 + index * 2.3),
  );
  return Tensor.from(values, {
    shape: [4, 5],
    dtype: config.fp16.enabled ? 'f16' : config.bf16.enabled ? 'bf16' : 'f32',
    device,
  }).keep();
}

export function forward(engine: Engine, index: number): Tensor {
  const x = inputs(engine, index);
  (engine.module as Net).step = index;
  const loss = engine.forward<Tensor>(x);
  x.dispose();
  return loss;
}

export function step(engine: Engine, index: number): number {
  const loss = forward(engine, index);
  engine.backward(loss.numel === 1 ? loss : meanSquare(loss));
  engine.step();
  return loss.numel === 1 ? loss.item() : 0;
}

const repeat = (body: (index: number) => number): number[] =>
  Array.from({ length: STEPS }, (_, index) => body(index));

export const train = (engine: Engine): number[] => repeat((index) => step(engine, index));

const tokensModel = (more: Partial<nn.models.GPT2Config>) => () =>
  new nn.models.GPT2({
    vocabSize: tinyShape.vocabulary,
    maxSeq: 32,
    layers: 3,
    heads: 2,
    channels: 36,
    ...more,
  });

function tokenSteps(engine: Engine): number[] {
  return repeat((index) => {
    const { tokens, targets } = tinyBatch(index * 2 + engine.globalRank, engine.device);
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    engine.step();
    tokens.dispose();
    targets.dispose();
    return loss.item();
  });
}

/** Rank 0 has only ignored labels. */
function partlyIgnoredSteps(engine: Engine): number[] {
  return repeat((index) => {
    const { tokens, targets } = tinyBatch(index * 2 + engine.globalRank, engine.device);
    const { shape, device } = targets;
    const none = full(shape, -100, { dtype: 'i32', device }).keep();
    const loss = engine.forward<Tensor>(tokens, engine.globalRank === 0 ? none : targets);
    engine.backward(loss);
    engine.step();
    for (const tensor of [tokens, targets, none]) tensor.dispose();
    assert.equal(loss.item() > 0, engine.globalRank > 0);
    return engine.getGlobalGradNorm() as number;
  });
}

const structures: Scenario[] = [
  { name: 'plain', model: () => new Net() },
  { name: 'parameters tied across units', model: () => new Net({ tied: true }) },
  { name: 'a parameter tied with a module outside the units', model: () => new SharingNet() },
  { name: 'a layer used twice', model: () => new Net({ block: () => new TwiceBlock() }) },
  { name: 'a unit called twice', model: () => new Net({ route: () => [0, 1, 0, 2, 1] }) },
  {
    name: 'units that some steps leave out',
    model: () => new Net({ route: (index) => (index % 2 ? [0, 2] : [0, 1, 2]) }),
  },
  {
    name: 'another order every step',
    model: () =>
      new Net({
        route: (index) =>
          [
            [0, 1, 2],
            [2, 1, 0],
            [1, 2, 0, 1],
            [2, 0],
          ][index % 4] ?? [],
      }),
  },
  { name: 'results in nested collections', model: () => new NestedNet() },
  { name: 'a root that returns what a unit returns', model: () => new PassingNet() },
  { name: 'an external parameter', model: () => new BorrowingNet(zero.registerExternalParameter) },
  { name: 'no array of modules', model: () => new FlatNet() },
  { name: 'buffers of every dtype', model: () => new BufferedNet() },
  { name: 'checkpointed units', model: () => new Net({ checkpointed: true }) },
  { name: 'GPT-2', model: tokensModel({}), train: tokenSteps },
  { name: 'GPT-2, labels of rank 0 ignored', model: tokensModel({}), train: partlyIgnoredSteps },
  ...([true, 'selective'] as const).map((activationCheckpointing) => ({
    name: `GPT-2, activation checkpointing ${activationCheckpointing}`,
    model: tokensModel({ activationCheckpointing }),
    train: tokenSteps,
  })),
  {
    name: 'GPT-2, two checkpointed segments, attention kept in host memory',
    model: tokensModel({ activationCheckpointing: true, numberCheckpoints: 2 }),
    train: tokenSteps,
    config: { activation_checkpointing: { cpu_checkpointing: true, keep_attention: true } },
  },
];

function freeze(net: Net): Net {
  for (const parameter of (net.blocks[1] as nn.Module).parameters()) parameter.requireGrad(false);
  (net.blocks[0] as nn.Module).parameters()[1]?.requireGrad(false);
  return net;
}

/** Trains only parameters with a name that matches `part`. */
function onlyTraining<Model extends nn.Module>(model: Model, part: RegExp): Model {
  for (const [name, parameter] of model.namedParameters()) parameter.requireGrad(part.test(name));
  return model;
}

const untrained: Scenario[] = [
  { name: 'a frozen unit and a frozen parameter', model: () => freeze(new Net()) },
  { name: 'frozen and tied across units', model: () => freeze(new Net({ tied: true })) },
  { name: 'frozen, checkpointed', model: () => freeze(new Net({ checkpointed: true })) },
  { name: 'frozen, called twice', model: () => freeze(new Net({ route: () => [0, 1, 0, 2, 1] })) },
  {
    name: 'frozen, another order every step',
    model: () =>
      freeze(
        new Net({
          route: (index) =>
            [
              [0, 1, 2],
              [2, 0],
              [1, 1, 0],
            ][index % 3] ?? [],
        }),
      ),
  },
  {
    name: 'frozen blocks with adapters in f32',
    model: () => onlyTraining(new Net({ block: () => new AdaptedBlock() }), /narrow|widen/),
  },
  {
    name: 'frozen blocks with adapters in f32, fp16',
    model: () => onlyTraining(new Net({ block: () => new AdaptedBlock() }), /narrow|widen/),
    config: { bf16: { enabled: false }, fp16: { enabled: true, initial_scale_power: 4 } },
  },
  {
    name: 'matrices of two dtypes, Muon',
    model: () => new Net({ block: () => new MixedBlock() }),
    config: { optimizer: { type: 'Muon', params: { lr: 1e-2 } } },
  },
  ...([false, true, 'selective'] as const).map((activationCheckpointing) => ({
    name: `GPT-2, norms alone trained, activation checkpointing ${activationCheckpointing}`,
    model: () => onlyTraining(tokensModel({ activationCheckpointing })(), /ln_/),
    train: tokenSteps,
  })),
  ...([false, true] as const).map((activationCheckpointing) => ({
    name: `GPT-2 with LoRA, activation checkpointing ${activationCheckpointing}`,
    model: () =>
      peft.addLora(tokensModel({ activationCheckpointing })(), {
        r: 3,
        targetModules: 'all-linear',
        loraDropout: 0.1,
        bias: 'lora_only',
      }),
    train: tokenSteps,
  })),
  {
    name: 'GPT-2 with LoRA over 4-bit weights',
    model: () =>
      peft.addLora(peft.quantize(tokensModel({})()), { r: 3, targetModules: 'all-linear' }),
    train: tokenSteps,
  },
  {
    name: 'an external parameter, all but biases frozen',
    model: () => onlyTraining(new BorrowingNet(zero.registerExternalParameter), /bias/),
  },
  {
    name: 'parameters in no group',
    model: () => new Net(),
    parameters: (model) => model.parameters().filter((_, i) => i % 3 !== 1),
  },
  {
    name: 'parameters frozen between steps',
    model: () => new Net(),
    train: (engine) =>
      repeat((index) => {
        const { blocks } = engine.module as Net;
        const early = [0, 1, 2].flatMap((i) => (blocks[i] as nn.Module).parameters().slice(0, 2));
        for (const parameter of early) parameter.requireGrad(index % 2 === 0);
        return step(engine, index);
      }),
  },
];

/** The gradients of several losses on one rank, and of several micro-batches. */
const orders: Scenario[] = [
  {
    name: 'eval forwards between steps',
    model: () => new Net(),
    train: (engine) =>
      repeat((index) => {
        engine.eval();
        const before = noGrad(() => forward(engine, 90 + index).item());
        engine.train();
        return before + step(engine, index);
      }),
  },
  {
    name: 'forwards without backward',
    model: () => new Net(),
    train: (engine) =>
      repeat((index) => {
        forward(engine, 70 + index);
        return step(engine, index);
      }),
  },
  {
    name: 'graphs that are older than the update',
    model: () => new Net(),
    train: (engine) =>
      repeat((index) => {
        const old = forward(engine, 70 + index);
        const loss = step(engine, index);
        assert.throws(() => engine.backward(meanSquare(old)), /changed in place after/);
        engine.zeroGrad();
        return loss;
      }),
  },
  {
    name: 'noSync',
    model: () => new Net(),
    train: (engine) =>
      repeat((index) => {
        engine.noSync(() => engine.backward(forward(engine, 50 + index)));
        return step(engine, index);
      }),
  },
  {
    name: 'loss.backward() and its epilogue',
    model: () => new Net(),
    train: (engine) =>
      repeat((index) => {
        const losses = [forward(engine, index), forward(engine, 40 + index)] as const;
        losses[0].add(losses[1]).backward();
        engine.backwardEpilogue();
        engine.step();
        return losses[0].item();
      }),
  },
  {
    name: 'accumulation, and another batch size in the middle',
    model: () => new Net(),
    inPairs: true,
    config: { gradient_accumulation_steps: 2 },
    train: (engine) => {
      const losses = [0, 1, 2, 3].map((index) => step(engine, index));
      engine.setTrainBatchSize(3 * 4 * engine.worldSize);
      return [...losses, ...[4, 5, 6, 7, 8, 9].map((index) => step(engine, index))];
    },
  },
  {
    name: 'as many backwards a step as the program likes',
    model: () => new Net(),
    inPairs: true,
    config: { managed_gradient_accumulation: false },
    train: (engine) =>
      repeat((index) => {
        const losses = Array.from({ length: 1 + (index % 3) }, (_, micro) => {
          const loss = forward(engine, 10 * index + micro);
          engine.backward(loss);
          return loss.item();
        });
        engine.step();
        return losses.reduce((a, b) => a + b) + (engine.getGlobalGradNorm() as number);
      }),
  },
  {
    name: 'zeroGrad',
    model: () => new Net(),
    config: { gradient_accumulation_steps: 2 },
    inPairs: true,
    train: (engine) => {
      engine.backward(forward(engine, 60));
      engine.zeroGrad();
      return [0, 1, 2, 3].map((index) => step(engine, index));
    },
  },
];

function failingScenario(where: 'forward' | 'backward', accumulation: number): Scenario {
  return {
    name: `a failure in ${where}, accumulation ${accumulation}`,
    model: () => new FailingNet(),
    config: { gradient_accumulation_steps: accumulation },
    inPairs: accumulation > 1,
    train: (engine) => {
      const net = engine.module as FailingNet;
      const good = (from: number): number[] =>
        Array.from({ length: 2 * accumulation }, (_, index) => step(engine, from + index));
      const before = good(0);
      if (accumulation > 1) step(engine, 30);
      net.fails = where;
      assert.throws(() => step(engine, 31), /fails/);
      net.fails = null;
      // A failed forward keeps the gradients before it: the next forward completes the step.
      if (accumulation > 1 && where === 'forward') step(engine, 32);
      return [...before, ...good(10)];
    },
  };
}

const generating: Scenario = {
  name: 'GPT-2, sampling between steps',
  model: tokensModel({}),
  train: (engine) => {
    const model = engine.module as nn.models.GPT2;
    const sampled = [0, 1].flatMap(() => {
      tokenSteps(engine);
      return model.generate([5, 9, 3], { maxNewTokens: 6, temperature: 0.7 });
    });
    return sampled;
  },
};

export const shapes: readonly Scenario[] = [
  ...structures,
  ...untrained,
  ...orders,
  ...[1, 2].flatMap((accumulation) => [
    failingScenario('forward', accumulation),
    failingScenario('backward', accumulation),
  ]),
  generating,
];
