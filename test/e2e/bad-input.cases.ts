// Tests that each wrong input throws a DsError with the place and the fix, and that no memory
// leaks.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  DsError,
  type DsErrorCode,
  data,
  initialize,
  matmul,
  nn,
  scope,
  Tensor,
  zero,
} from '../../lib/index.js';
import { cpu, type Device, device as findDevice } from '../../lib/runtime/device.js';
import { crossEntropy, full, linearCrossEntropy } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { quiet } from '../support/quiet.js';
import { tinyBatch, tinyConfig, tinyEngine, trainTiny, weightBits } from './tiny-training.js';

/**
 * Runs `body` and expects a DsError with `code` and a message that matches, and a hint if `hint` is
 * given.
 */
async function expectError(
  code: DsErrorCode,
  pattern: RegExp,
  body: () => unknown,
  { hint = true } = {},
): Promise<void> {
  try {
    await body();
  } catch (error) {
    assert.ok(error instanceof DsError, `not a DsError: ${error}`);
    assert.equal(error.code, code, error.message);
    assert.match(error.message, pattern);
    if (hint) assert.ok(error.hint.length > 0, `no hint: ${error.message}`);
    return;
  }
  assert.fail(`expected ${code}`);
}

async function poisonedLoss(device: Device): Promise<void> {
  const engine = await tinyEngine({ precision: 'fp32', offload: false }, device);
  trainTiny(engine, 0, 2);
  const before = weightBits(engine);
  const { tokens, targets } = tinyBatch(0, device);
  const loss = engine.forward<Tensor>(tokens, targets).mul(Number.NaN);
  engine.backward(loss);
  engine.step();
  await expectError('DS_NONFINITE', /finite loss.*NaN/, () => engine.synchronize());
  assert.deepEqual(weightBits(engine), before, 'the weights changed');
  engine.destroy();
  tokens.dispose();
  targets.dispose();
}

/**
 * If all labels are ignored, loss and gradients are 0, the engine warns once, and training
 * continues.
 */
async function ignoredLabels(device: Device): Promise<void> {
  const notices: string[] = [];
  const { emitWarning } = process;
  process.emitWarning = (text: string | Error) => {
    notices.push(String(text));
  };
  const engine = await tinyEngine({ precision: 'bf16', offload: false, accumulation: 2 }, device);
  const { tokens, targets } = tinyBatch(0, device);
  const none = scope(() => full(targets.shape, -100, { dtype: 'i32', device })).keep();
  const micro = (labels: Tensor): number => {
    const loss = engine.forward<Tensor>(tokens, labels);
    engine.backward(loss);
    engine.step();
    return loss.item();
  };
  assert.deepEqual([micro(none), micro(none)], [0, 0]);
  assert.equal(engine.getGlobalGradNorm(), 0);
  const half = [micro(targets), micro(none)];
  assert.ok((half[0] as number) > 0 && half[1] === 0);
  assert.ok((engine.getGlobalGradNorm() as number) > 0);
  micro(targets);
  micro(targets);
  engine.synchronize();
  engine.destroy();
  process.emitWarning = emitWarning;
  assert.equal(notices.length, 1, notices.join());
  assert.match(notices[0] as string, /rank 0 no label of 2 micro-batches counts/);
  for (const tensor of [tokens, targets, none]) tensor.dispose();
}

/**
 * Mean losses over no labels: the loss is 0, and so are gradients, even for rows that are not
 * finite.
 */
function emptyMeans(device: Device): void {
  scope(() => {
    const labels = full([5], -100, { dtype: 'i64', device });
    const rows = [1e30, -1e30, Number.POSITIVE_INFINITY, Number.NaN, 3];
    const logits = Tensor.from(
      rows.flatMap((value) => [value, 0, 1]),
      { shape: [5, 3], device },
    );
    const x = full([5, 4], 0.5, { device });
    const weight = full([3, 4], 0.25, { device });
    for (const leaf of [logits, x, weight]) leaf.requireGrad();
    const losses = [
      crossEntropy(logits, labels),
      linearCrossEntropy(x, weight, labels),
      linearCrossEntropy(x, weight, labels, { recompute: true, chunkRows: 2 }),
    ];
    for (const loss of losses) {
      assert.equal(loss.item(), 0);
      loss.backward();
    }
    for (const { grad } of [logits, x, weight]) {
      assert.ok(grad?.toArray().every((value) => value === 0));
      grad?.release();
    }
  });
}

const MIB = 2 ** 20;

async function outOfMemory(device: Device): Promise<void> {
  await quiet();
  const before = device.memory;
  device.trim();
  const { reserved, inUse } = device.memory;
  // A GPU's driver reserves 32 MiB at a time, so a smaller cap may leave room for nothing.
  const growth = 64;
  device.setMemoryCap(reserved + growth * MIB);
  // Earlier cases may have left reservations that are partly in use: tensors fit into the rest.
  const most = Math.ceil((reserved - inUse) / MIB) + growth;
  try {
    const hold: Tensor[] = [];
    await expectError('DS_OUT_OF_MEMORY', /cap/, () => {
      for (let i = 0; i <= most; ++i) hold.push(Tensor.empty([MIB / 4], 'f32', device).keep());
    });
    assert.ok(hold.length >= growth / 2, `${hold.length} MiB fitted into ${growth} MiB and more`);
    for (const tensor of hold) tensor.dispose();
    assert.equal(device.memory.inUse, before.inUse, 'memory leaked');
  } finally {
    device.setMemoryCap(0);
  }
  const after = Tensor.empty([2 ** 20], 'f32', device);
  after.dispose();
}

export const cases: Case[] = [
  {
    name: 'a batch with only ignored labels has loss and gradient 0, and one notice',
    run: ignoredLabels,
  },
  { name: 'a mean over no label is 0, and so are its gradients', run: emptyMeans },
  {
    name: 'wrong shapes are a typed error',
    run: (device) =>
      expectError('DS_SHAPE', /matmul/, () => {
        const a = Tensor.from(new Float32Array(6), { shape: [2, 3], device });
        matmul(a, a);
      }),
  },
  {
    name: 'mixed dtypes are a typed error',
    run: (device) =>
      expectError('DS_DTYPE', /add/, () => {
        Tensor.from([1], { device }).add(Tensor.from([1], { device, dtype: 'bf16' }));
      }),
  },
  {
    name: 'mixed devices are a typed error',
    async run(device) {
      if (device.kind === 'cpu') {
        await expectError('DS_DEVICE', /GPU 99/, () => findDevice('cuda:99'));
        // The index plus one must not overflow to 0, the index of the CPU.
        await expectError('DS_DEVICE', /device/, () => findDevice('cuda:4294967295'));
        return;
      }
      await expectError('DS_DEVICE', /add|Binary/, () => {
        Tensor.from([1], { device }).add(Tensor.from([1], { device: cpu() }));
      });
    },
  },
  { name: 'a NaN loss is a typed error and does not change the weights', run: poisonedLoss },
  { name: 'memory beyond the cap is a typed error and leaks nothing', run: outOfMemory },
  {
    name: 'an unreadable or too short data file is a typed error',
    async run() {
      const dir = mkdtempSync(join(tmpdir(), 'ds-data-'));
      const encode = (text: string): number[] => [...text].map((c) => c.charCodeAt(0));
      await expectError('DS_DATA', /missing\.txt/, () =>
        data.TokenDataset.fromText({ path: join(dir, 'missing.txt'), encode, seq: 8 }),
      );
      writeFileSync(join(dir, 'short.txt'), 'abc');
      await expectError('DS_DATA', /short\.txt/, () =>
        data.TokenDataset.fromText({ path: join(dir, 'short.txt'), encode, seq: 8 }),
      );
      rmSync(dir, { recursive: true });
    },
  },
  {
    name: 'a model the configuration cannot train is a typed error',
    async run(device) {
      const { optimizer: _, ...config } = tinyConfig({ precision: 'fp32', offload: false });
      const model = new nn.Linear(2, 2);
      await expectError('DS_CONFIG', /optimizer/, () => initialize({ model, config, device }));
    },
  },
  {
    name: 'a value that is no model, and a model of another engine, are typed errors',
    async run(device) {
      const config = tinyConfig({ precision: 'fp32', offload: false });
      const start = (model: unknown) => initialize({ model: model as nn.Module, config, device });
      const plain = { hint: false };
      await expectError('DS_ARGUMENT', /got undefined/, () => start(undefined), plain);
      await expectError('DS_ARGUMENT', /the class Linear itself.*new Linear/, () =>
        start(nn.Linear),
      );
      await expectError('DS_ARGUMENT', /class Object/, () => start({ forward() {} }), plain);
      const reading = Promise.resolve(new nn.Linear(2, 2));
      await expectError('DS_ARGUMENT', /class Promise\. Await the promise/, () => start(reading));
      const read = () => reading as unknown as nn.Module;
      await expectError('DS_ARGUMENT', /promise\. .*without zero\.Init/, () => zero.Init(read));
      class Silent extends (nn.Module as unknown as new () => object) {}
      await expectError('DS_ARGUMENT', /Silent without forward/, () => start(new Silent()), plain);
      const model = new nn.Linear(2, 2);
      const { engine } = await start(model);
      await expectError('DS_ARGUMENT', /weight, owned by another engine.*destroy/, () =>
        start(model),
      );
      engine.destroy();
      (await start(model)).engine.destroy();
    },
  },
  {
    name: "DeepSpeed's names of options are taken, other names are typed errors",
    async run(device) {
      const config = tinyConfig({ precision: 'fp32', offload: false });
      const model = new nn.Linear(2, 2);
      const options = { model, config, device, training_data: undefined, modelParams: undefined };
      (await initialize(options)).engine.destroy();
      await expectError('DS_ARGUMENT', /a dataset.*length and get/, () =>
        initialize(Object.assign({ ...options }, { training_data: { length: 1 } })),
      );
      await expectError('DS_ARGUMENT', /"trainingdata".*Did you mean "trainingData"/, () =>
        initialize(Object.assign({ ...options }, { trainingdata: { length: 1 } })),
      );
      const samples: unknown = [1, 2, 3];
      await expectError('DS_ARGUMENT', /length and get.*an array of 3/, () =>
        initialize({ model, config, device, trainingData: samples as data.Dataset<number> }),
      );
      const expectNamed = (options: object) =>
        new data.DataLoader({ length: 3, get: (i) => i }, options as { batchSize: number });
      assert.equal(expectNamed({ batch_size: 3 }).batchSize, 3);
      await expectError('DS_ARGUMENT', /"batchsize".*Did you mean "batchSize"/, () =>
        expectNamed({ batchsize: 3 }),
      );
      await expectError('DS_ARGUMENT', /"batchSize" once/, () =>
        expectNamed({ batch_size: 3, batchSize: 3 }),
      );
    },
  },
  {
    name: 'changing weights that an engine owns is a typed error',
    async run(device) {
      const engine = await tinyEngine({ precision: 'fp32', offload: false }, device);
      const state = engine.module.stateDict();
      await expectError('DS_ARGUMENT', /loadStateDict/, () => engine.module.loadStateDict(state));
      await expectError('DS_ARGUMENT', /Module\.to/, () => engine.module.to('f32'));
      engine.destroy();
    },
  },
  {
    name: 'backward() of another value than a loss, and step() without backward(), are typed errors',
    async run(device) {
      const engine = await tinyEngine({ precision: 'fp32', offload: false }, device);
      const { tokens } = tinyBatch(0, device);
      const logits = engine.forward<Tensor>(tokens);
      await expectError('DS_SHAPE', /engine\.backward/, () => engine.backward(logits));
      // A model output of transformers and the result of loss.item() are no loss tensors.
      for (const outputs of [{ loss: logits, logits }, [logits], 0.5, undefined]) {
        const none = outputs as unknown as Tensor;
        const alone = /pass only the loss/;
        await expectError('DS_ARGUMENT', alone, () => engine.backward(none));
        await expectError('DS_ARGUMENT', alone, () => engine.scale(none));
      }
      await expectError('DS_AUTOGRAD', /engine\.step/, () => engine.step(), { hint: false });
      engine.destroy();
      tokens.dispose();
    },
  },
];
