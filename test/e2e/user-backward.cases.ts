// Compares loss.backward(), joint losses of several engines, noSync and unmanaged accumulation with
// engine.backward().
import assert from 'node:assert/strict';
import {
  type DsConfig,
  type Engine,
  initialize,
  nn,
  scaleJointLoss,
  scope,
  Tensor,
} from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { type Precision, tinyBatch, tinyConfig, tinyModel, weightBits } from './tiny-training.js';

const STEPS = 6;

interface Setup {
  precision?: Precision;
  offload?: boolean;
  speculative?: boolean;
  accumulation?: number;
  managed?: boolean;
}

async function tinyEngine(setup: Setup, device: Device): Promise<Engine> {
  const { precision = 'fp32', offload = false, speculative, accumulation, managed = true } = setup;
  seed(7);
  const config: DsConfig = {
    ...tinyConfig({ precision, offload, speculative, accumulation }),
    managed_gradient_accumulation: managed,
    ...(precision === 'fp16' ? { fp16: { enabled: true, initial_scale_power: 8 } } : {}),
  };
  return (await initialize({ model: tinyModel(), config, device })).engine;
}

type Backward = (engine: Engine, loss: Tensor, micro: number) => void;

const ours: Backward = (engine, loss) => engine.backward(loss);
const direct: Backward = (_engine, loss) => loss.backward();
const scaleLoss: Backward = (engine, loss) => scope(() => engine.scale(loss).backward());

/** Weights after STEPS global steps of `micros` micro-batches. */
async function trainWeights(
  setup: Setup,
  device: Device,
  run: Backward,
  micros = 1,
): Promise<Map<string, string>> {
  const engine = await tinyEngine(setup, device);
  for (let index = 0; index < STEPS * micros; ++index) {
    const { tokens, targets } = tinyBatch(index, device);
    run(engine, engine.forward<Tensor>(tokens, targets), index % micros);
    if (index % micros === micros - 1 || setup.managed !== false) engine.step();
    tokens.dispose();
    targets.dispose();
  }
  assert.equal(engine.globalSteps, STEPS);
  assert.equal(engine.globalSamples, STEPS * micros * 3);
  const bits = weightBits(engine);
  engine.destroy();
  return bits;
}

const sameBits =
  (setup: Setup, run: Backward, micros = 1) =>
  async (device: Device): Promise<void> => {
    const expected = await trainWeights(setup, device, ours, micros);
    assert.deepEqual(await trainWeights(setup, device, run, micros), expected);
  };

/** noSync() for all micro-batches except the last, on a configuration without accumulation. */
async function noSyncAddsUp(device: Device): Promise<void> {
  const accumulated = await trainWeights({ accumulation: 4 }, device, ours, 4);
  const engine = await tinyEngine({}, device);
  for (let index = 0; index < STEPS * 4; ++index) {
    const { tokens, targets } = tinyBatch(index, device);
    const micro = (): void =>
      scope(() => engine.backward(engine.forward<Tensor>(tokens, targets).mul(0.25)));
    if (index % 4 === 3) {
      micro();
      engine.step();
    } else engine.noSync(micro);
    tokens.dispose();
    targets.dispose();
  }
  assert.deepEqual(weightBits(engine), accumulated);
  engine.noSync(() => {
    assert.throws(() => engine.step(), { code: 'DS_AUTOGRAD' });
    assert.throws(() => engine.noSync(() => {}), { code: 'DS_AUTOGRAD' });
  });
  engine.destroy();
}

/** The caller divides by the number of micro-batches, because the engine has no such setting. */
const divideLoss: Backward = (engine, loss) => scope(() => engine.backward(loss.mul(0.25)));

class Tower extends nn.Module {
  readonly first: nn.Linear;
  readonly second: nn.Linear;

  constructor(
    readonly inputs: number,
    readonly outputs: number,
  ) {
    super();
    this.first = new nn.Linear(inputs, 19);
    this.second = new nn.Linear(19, outputs);
  }

  forward(x: Tensor): Tensor {
    return this.second.call(this.first.call(x).gelu());
  }
}

class Pair extends nn.Module {
  constructor(
    readonly left: Tower,
    readonly right: Tower,
  ) {
    super();
  }

  forward(x: Tensor): [Tensor, Tensor] {
    return [this.left.call(x), this.right.call(x)];
  }
}

const towers = (): [Tower, Tower] => {
  seed(11);
  return [new Tower(13, 5), new Tower(13, 5)];
};

const jointConfig = (accumulation: number): DsConfig => ({
  train_micro_batch_size_per_gpu: 7,
  gradient_accumulation_steps: accumulation,
  gradient_clipping: 0,
  optimizer: { type: 'AdamW', params: { lr: 1e-2, weight_decay: 0.1 } },
});

const batchOf = (index: number, device: Device): Tensor =>
  Tensor.from(
    Float32Array.from({ length: 7 * 13 }, (_, i) => Math.sin(i * 0.7 + index * 1.3)),
    { shape: [7, 13], device },
  ).keep();

const jointLoss = (a: Tensor, b: Tensor): Tensor => a.sub(b).square().mean().add(a.mul(b).mean());

async function jointEqualsOneModel(device: Device, accumulation: number): Promise<void> {
  const make = async (model: nn.Module): Promise<Engine> =>
    (await initialize({ model, config: jointConfig(accumulation), device })).engine;
  const [left, right] = await Promise.all(towers().map(make));
  const engines = [left, right] as [Engine, Engine];
  const fullEngine = await make(new Pair(...towers()));
  for (let index = 0; index < STEPS * accumulation; ++index) {
    const x = batchOf(index, device);
    scope(() => {
      const [a, b] = engines.map((engine) => engine.forward<Tensor>(x)) as [Tensor, Tensor];
      jointLoss(a, b).backward();
      engines.map((engine) => engine.backwardEpilogue());
      for (const engine of engines) engine.step();
      const [c, d] = fullEngine.forward<[Tensor, Tensor]>(x);
      fullEngine.backward(jointLoss(c, d));
      fullEngine.step();
    });
    x.dispose();
  }
  const apart = engines.flatMap((engine) => [...weightBits(engine).values()]);
  assert.deepEqual(apart, [...weightBits(fullEngine).values()]);
  assert.notDeepEqual(apart.slice(0, 2), apart.slice(4, 6));
  for (const engine of [...engines, fullEngine]) engine.destroy();
}

/** A loss throws if it gives no gradient to this engine. */
async function anothersLoss(device: Device): Promise<void> {
  const make = async (model: nn.Module): Promise<Engine> =>
    (await initialize({ model, config: jointConfig(1), device })).engine;
  const [left, right] = (await Promise.all(towers().map(make))) as [Engine, Engine];
  const x = batchOf(0, device);
  const before = [left, right].map(weightBits);
  scope(() => {
    const [a, b] = [left, right].map((engine) => engine.forward<Tensor>(x)) as [Tensor, Tensor];
    assert.throws(() => left.backward(b.square().mean()), {
      code: 'DS_AUTOGRAD',
      op: 'engine.backward',
      message: /this engine's model, got a loss with .* only for .* another engine \(a Tower\)/,
    });
    assert.throws(() => left.step(), { message: /backward\(\) before step\(\)/ });
    assert.throws(() => right.step(), { message: /backward\(\) before step\(\)/ });
    left.backward(a.square().mean());
    right.backward(right.forward<Tensor>(x).square().mean());
    for (const engine of [left, right]) engine.step();
  });
  assert.notDeepEqual([left, right].map(weightBits), before);
  x.dispose();
  for (const engine of [left, right]) engine.destroy();
}

/** For example a generator that trains through a discriminator, or a student with a teacher. */
async function lossThroughAnother(device: Device): Promise<void> {
  seed(11);
  const make = async (model: nn.Module): Promise<Engine> =>
    (await initialize({ model, config: jointConfig(1), device })).engine;
  const first = await make(new Tower(13, 13));
  const second = await make(new Tower(13, 5));
  const x = batchOf(0, device);
  scope(() => {
    first.backward(second.forward<Tensor>(first.forward<Tensor>(x)).mean());
    first.step();
    second.zeroGrad();
    const frozen = first.forward<Tensor>(x).detach();
    second.backward(second.forward<Tensor>(frozen).mean());
    second.step();
  });
  for (const engine of [first, second]) {
    assert.equal(engine.globalSteps, 1);
    assert.ok((engine.getGlobalGradNorm() as number) > 0);
    engine.destroy();
  }
  x.dispose();
}

/** A rank without a loss may pass a loss that depends on no weights. */
async function lossOfNothing(device: Device): Promise<void> {
  const [model] = towers();
  const { engine } = await initialize({ model, config: jointConfig(1), device });
  scope(() => {
    engine.backward(Tensor.from([0], { shape: [], device }).requireGrad().mul(2));
    engine.step();
  });
  assert.equal(engine.getGlobalGradNorm(), 0);
  engine.destroy();
}

/** Two losses, two backwards, one micro-batch. */
async function twoBackwardsPerStep(device: Device): Promise<void> {
  const bits: Map<string, string>[] = [];
  for (const split of [true, false]) {
    const [model] = towers();
    const { engine } = await initialize({ model, config: jointConfig(1), device });
    for (let index = 0; index < STEPS; ++index) {
      const x = batchOf(index, device);
      scope(() => {
        const y = engine.forward<Tensor>(x);
        if (split) {
          y.square().mean().backward();
          engine.forward<Tensor>(x).mean().backward();
        } else y.square().mean().add(engine.forward<Tensor>(x).mean()).backward();
        engine.backwardEpilogue();
      });
      engine.step();
      x.dispose();
    }
    bits.push(weightBits(engine));
    engine.destroy();
  }
  assert.equal(bits[0]?.size, bits[1]?.size);
  const [split, joint] = bits.map(floats) as [Float32Array, Float32Array];
  for (const [i, value] of split.entries()) {
    assert.ok(Math.abs(value - (joint[i] as number)) < 1e-5, `${value} ${joint[i]}`);
  }
}

function floats(bits: Map<string, string>): Float32Array {
  return Float32Array.from(
    [...bits.values()].flatMap((text) => {
      const raw = Buffer.from(text, 'base64');
      return [...new Float32Array(raw.buffer, raw.byteOffset, raw.byteLength / 4)];
    }),
  );
}

async function fp16DemandsScale(device: Device): Promise<void> {
  const engine = await tinyEngine({ precision: 'fp16' }, device);
  const { tokens, targets } = tinyBatch(0, device);
  assert.throws(() => engine.forward<Tensor>(tokens, targets).backward(), /engine\.scale\(loss\)/);
  engine.destroy();
}

/** Two fp16 engines with one loss and one loss scale. */
async function jointFp16(device: Device): Promise<void> {
  const make = (power: number): Promise<Engine> => {
    const config: DsConfig = {
      ...jointConfig(1),
      fp16: { enabled: true, initial_scale_power: power },
    };
    return initialize({ model: towers()[0], config, device }).then(({ engine }) => engine);
  };
  const bits: string[][] = [];
  for (const powers of [
    [6, 6],
    [9, 6],
  ]) {
    const engines = (await Promise.all(powers.map(make))) as [Engine, Engine];
    const x = batchOf(0, device).to('f16').keep();
    for (let step = 0; step < 2; ++step) {
      scope(() => {
        const [a, b] = engines.map((engine) => engine.forward<Tensor>(x).to('f32'));
        scaleJointLoss(jointLoss(a as Tensor, (b as Tensor).mul(0.5)), engines).backward();
        for (const engine of engines) engine.backwardEpilogue();
      });
      for (const engine of engines) engine.step();
    }
    bits.push(engines.flatMap((engine) => [...weightBits(engine).values()]));
    for (const engine of engines) engine.destroy();
  }
  assert.deepEqual(bits[0], bits[1]);
}

async function batchSizeChanges(device: Device): Promise<void> {
  const engine = await tinyEngine({ accumulation: 2 }, device);
  engine.setTrainBatchSize(12);
  assert.deepEqual(
    [
      engine.trainBatchSize(),
      engine.gradientAccumulationSteps(),
      engine.trainMicroBatchSizePerGpu(),
    ],
    [12, 4, 3],
  );
  assert.throws(() => engine.setTrainBatchSize(13), /multiple of 3/);
  const { tokens, targets } = tinyBatch(0, device);
  for (let micro = 0; micro < 4; ++micro) {
    assert.equal(engine.isGradientAccumulationBoundary(), micro === 3);
    engine.backward(engine.forward<Tensor>(tokens, targets));
    engine.step();
    if (micro === 0) assert.throws(() => engine.setTrainBatchSize(6), { code: 'DS_AUTOGRAD' });
    assert.equal(engine.globalSteps, micro === 3 ? 1 : 0);
  }
  engine.setTrainMicroBatchSize(1);
  assert.deepEqual([engine.trainBatchSize(), engine.gradientAccumulationSteps()], [4, 4]);
  engine.destroy();
}

/** The boundary flag holds until step(), as in DeepSpeed loops that read it before step(). */
async function boundaryUntilStep(device: Device): Promise<void> {
  const engine = await tinyEngine({ accumulation: 3 }, device);
  const { tokens, targets } = tinyBatch(0, device);
  for (let micro = 0; micro < 6; ++micro) {
    const isLast = micro % 3 === 2;
    const seen = [engine.isGradientAccumulationBoundary()];
    const loss = engine.forward<Tensor>(tokens, targets);
    seen.push(engine.isGradientAccumulationBoundary());
    if (micro < 3) engine.backward(loss);
    else loss.backward();
    seen.push(engine.isGradientAccumulationBoundary());
    if (micro >= 3) engine.backwardEpilogue();
    seen.push(engine.isGradientAccumulationBoundary());
    assert.deepEqual(seen, [isLast, isLast, isLast, isLast], `micro-batch ${micro}`);
    engine.step();
    assert.equal(engine.globalSteps, Math.floor((micro + 1) / 3));
    assert.equal(engine.wasStepApplied(), isLast, `micro-batch ${micro}`);
  }
  const loss = engine.forward<Tensor>(tokens, targets);
  engine.noSync(() => engine.backward(loss));
  assert.equal(engine.isGradientAccumulationBoundary(), false, 'after noSync()');
  assert.throws(() => engine.step(), {
    code: 'DS_AUTOGRAD',
    message: /got only gradients of noSync\(\)/,
  });
  engine.zeroGrad();
  assert.throws(() => engine.step(), { code: 'DS_AUTOGRAD', message: /got no gradient since/ });
  engine.destroy();
}

async function zeroGradForgets(device: Device): Promise<void> {
  const expected = await trainWeights({}, device, ours);
  const again = await trainWeights({}, device, (engine, loss, micro) => {
    if (engine.globalSteps === 2) {
      engine.noSync(() => engine.backward(loss));
      engine.zeroGrad();
      const { tokens, targets } = tinyBatch(engine.globalSteps + micro, device);
      engine.backward(engine.forward<Tensor>(tokens, targets));
    } else engine.backward(loss);
  });
  assert.deepEqual(again, expected);
}

/**
 * zeroGrad() at the head of the loop, as in PyTorch; with accumulation no step would ever complete.
 */
async function zeroGradAtHead(device: Device): Promise<void> {
  const one = await tinyEngine({}, device);
  const two = await tinyEngine({ accumulation: 2 }, device);
  const { tokens, targets } = tinyBatch(0, device);
  const turn = (engine: Engine): void => {
    engine.zeroGrad();
    engine.backward(engine.forward<Tensor>(tokens, targets));
    engine.step();
  };
  for (let index = 0; index < 3; ++index) turn(one);
  assert.equal(one.globalSteps, 3);
  turn(two);
  assert.equal(two.globalSamples, 0);
  assert.throws(() => turn(two), { code: 'DS_AUTOGRAD', message: /Remove the call/ });
  two.backward(two.forward<Tensor>(tokens, targets));
  two.step();
  turn(two);
  assert.deepEqual([two.globalSteps, two.globalSamples], [1, 6]);
  one.destroy();
  two.destroy();
}

const directCases: [string, Setup, Backward, number][] = [
  ['fp32', {}, direct, 1],
  ['fp32, accumulation 4 (a power of two)', { accumulation: 4 }, direct, 4],
  ['fp32, offload', { offload: true }, direct, 1],
  ['fp32, speculative offload', { offload: true, speculative: true }, direct, 1],
  [
    'bf16, offload, accumulation 2',
    { precision: 'bf16', offload: true, accumulation: 2 },
    direct,
    2,
  ],
  ['fp16 with scale()', { precision: 'fp16' }, scaleLoss, 1],
  [
    'fp16 with scale(), speculative offload',
    { precision: 'fp16', offload: true, speculative: true },
    scaleLoss,
    1,
  ],
];

export const cases: Case[] = [
  ...directCases.map(([name, setup, run, micros]) => ({
    name: `loss.backward() equals engine.backward(): ${name}`,
    run: sameBits(setup, run, micros),
  })),
  ...[1, 2].map((accumulation) => ({
    name: `a joint loss of two engines equals one model that holds both, accumulation ${accumulation}`,
    run: (device: Device) => jointEqualsOneModel(device, accumulation),
  })),
  {
    name: "a loss of another engine alone is refused, and ends both engines' steps",
    run: anothersLoss,
  },
  { name: 'a loss through another engine trains this engine', run: lossThroughAnother },
  { name: 'a loss that depends on no weight gives zero gradients', run: lossOfNothing },
  { name: 'several loss.backward() add up in one micro-batch', run: twoBackwardsPerStep },
  { name: 'fp16 demands scale() before loss.backward()', run: fp16DemandsScale },
  { name: 'engines with different loss scales train on one scaled loss', run: jointFp16 },
  { name: 'noSync() adds gradients without counting a micro-batch', run: noSyncAddsUp },
  ...[false, true].map((offload) => ({
    name: `unmanaged accumulation equals managed${offload ? ', speculative offload' : ''}`,
    run: async (device: Device) => {
      const setup = { offload, speculative: offload };
      const expected = await trainWeights({ ...setup, accumulation: 4 }, device, ours, 4);
      const got = await trainWeights({ ...setup, managed: false }, device, divideLoss, 4);
      assert.deepEqual(got, expected);
    },
  })),
  { name: 'setTrainBatchSize() changes the accumulation alone', run: batchSizeChanges },
  {
    name: 'isGradientAccumulationBoundary() and wasStepApplied() follow each micro-batch',
    run: boundaryUntilStep,
  },
  { name: 'zeroGrad() forgets the gradients', run: zeroGradForgets },
  { name: 'zeroGrad() between the micro-batches of a step is an error', run: zeroGradAtHead },
];
