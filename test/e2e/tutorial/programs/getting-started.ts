// Programs of the pages getting-started, cifar-10 and training: initialize(), the loop,
// checkpoints, and command line options.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { Command } from 'commander';
import {
  addConfigArguments,
  type DsConfig,
  findLatest,
  initDistributed,
  initialize,
  listTags,
  nn,
  parseConfigArguments,
  seed,
  Tensor,
} from '../../../../lib/index.js';
import {
  batchOf,
  configFile,
  expectRefusal,
  finish,
  hashOf,
  learn,
  leave,
  mlp,
  model,
  type Place,
  type Program,
  trainStep,
} from '../program.js';

/** The configuration of the page; `true` as the ZeRO section is stage 1. */
const STARTED = {
  train_batch_size: 8,
  gradient_accumulation_steps: 1,
  optimizer: { type: 'Adam', params: { lr: 0.00015 } },
  fp16: { enabled: true, initial_scale_power: 8 },
  zero_optimization: true,
} as unknown as DsConfig;

async function startTraining(place: Place): Promise<string> {
  const argv = ['--deepspeed', '--deepspeed_config', configFile(place, STARTED)];
  const { args } = parseConfigArguments(argv);
  await initDistributed({ device: place.device });
  const net = model();
  const { engine, optimizer } = await initialize({
    args,
    model: net,
    modelParameters: net.parameters(),
  });
  assert.equal(engine.zeroOptimizationStage(), 1);
  assert.equal(engine.trainMicroBatchSizePerGpu(), 8 / place.worldSize);
  assert.equal(optimizer.name, 'AdamW'); // Adam decouples weight decay, as in DeepSpeed.
  learn(engine, 12);
  return finish(engine);
}

/** Saves with the loss as tag, loads that tag, and continues after the saved step. */
async function saveCheckpoint(place: Place): Promise<string> {
  const saveDir = join(place.folder, 'saved');
  const config = configFile(place, { ...STARTED, fp16: { enabled: false } });
  const first = (await initialize({ model: model(), config, device: place.device })).engine;
  let tag = '';
  for (let step = 0; step < 4; ++step) {
    trainStep(first);
    if (step % 2 !== 1) continue;
    // The page takes loss.item(), which differs between ranks.
    tag = String(first.getGlobalLoss());
    await first.saveCheckpoint(saveDir, { tag, clientState: { step } });
  }
  const hash = hashOf(first);
  first.destroy();
  assert.ok(await findLatest(saveDir));
  const { engine } = await initialize({ model: model(), config, device: place.device });
  const { clientState } = await engine.loadCheckpoint(saveDir, { tag });
  assert.equal(clientState.step, 3);
  assert.equal(hashOf(engine), hash);
  learn(engine, 4);
  return finish(engine);
}

/** The page uses loss.item() as tag, which differs between ranks. The tag of rank 0 counts. */
async function ownTags(place: Place): Promise<string> {
  const config = configFile(place, { ...STARTED, fp16: { enabled: false } });
  const { engine } = await initialize({ model: model(), config, device: place.device });
  trainStep(engine);
  const dir = join(place.folder, 'own');
  const path = await engine.saveCheckpoint(dir, { tag: `loss-${place.rank}` });
  assert.match(path, /loss-0$/);
  assert.deepEqual(await listTags(dir), ['loss-0']);
  return finish(engine);
}

/** Halves height and width, like nn.MaxPool2d(2, 2). */
const pool = (x: Tensor): Tensor => {
  const [n, channels, height, width] = x.shape as [number, number, number, number];
  const cut = x.reshape([n, channels, height / 2, 2, width / 2, 2]);
  return cut.max({ dims: [3, 5] });
};

class Net extends nn.Module {
  readonly conv1 = new nn.Conv2d(3, 6, 5);
  readonly conv2 = new nn.Conv2d(6, 16, 5);
  readonly fc1 = new nn.Linear(16, 12);
  readonly fc2 = new nn.Linear(12, 10);

  override forward(x: Tensor): Tensor {
    const first = pool(this.conv1.call(x).relu());
    const second = pool(this.conv2.call(first).relu());
    const flat = second.reshape([second.shape[0] as number, -1]);
    return this.fc2.call(this.fc1.call(flat).relu());
  }
}

/** Images [3, 16, 16]. The brightest channel and half determine the class. */
const cifar = {
  length: 64,
  get(index: number): [Float32Array, number] {
    const label = index % 10;
    const image = Float32Array.from({ length: 3 * 256 }, (_, i) => {
      const isBright = Math.floor(i / 77) === label;
      return (isBright ? 1 : 0) + 0.1 * Math.sin(index * 7 + i);
    });
    return [image, label];
  },
};

const CIFAR: DsConfig = {
  train_batch_size: 4,
  steps_per_print: 2000,
  optimizer: {
    type: 'Adam',
    params: { lr: 0.01, betas: [0.8, 0.999], eps: 1e-8, weight_decay: 3e-7 },
  },
  scheduler: {
    type: 'WarmupLR',
    params: { warmup_min_lr: 0, warmup_max_lr: 0.01, warmup_num_steps: 100 },
  },
  wall_clock_breakdown: false,
};

/** Parses the program's and DeepSpeed's arguments with one parser, as on the page. */
function cifarArguments(argv: readonly string[]) {
  const parser = new Command('CIFAR')
    .option('--with_cuda', "use CPU in case there's no GPU support", false)
    .option('--use_ema', 'whether to use an exponential moving average', false)
    .option('-b, --batch_size <n>', 'mini-batch size', Number, 32)
    .option('-e, --epochs <n>', 'total epochs', Number, 30)
    .option('--local_rank <n>', 'local rank passed from the launcher', Number, -1);
  return addConfigArguments(parser).parse(argv, { from: 'user' }).opts();
}

async function classifyImages(place: Place): Promise<string> {
  const file = configFile(place, CIFAR);
  const words = ['--deepspeed', '--deepspeed_config', file, '-e', '4', '--local_rank=0'];
  const args = cifarArguments(words);
  assert.deepEqual([args.batch_size, args.epochs, args.with_cuda], [32, 4, false]);
  seed(3);
  const net = new Net();
  const parameters = net.parameters().filter((p) => p.requiresGrad);
  const { engine, trainLoader } = await initialize({
    args,
    model: net,
    modelParameters: parameters,
    trainingData: cifar,
    device: place.device,
  });
  const criterion = new nn.CrossEntropyLoss();
  const sums: number[] = [];
  for (let epoch = 0; epoch < args.epochs; ++epoch) {
    let sum = 0;
    for (const [images, labels] of trainLoader) {
      const inputs = images.reshape([-1, 3, 16, 16]);
      const loss = criterion.call(engine.forward(inputs), labels.to('i64')) as Tensor;
      engine.backward(loss);
      engine.step();
      sum += loss.item();
      for (const tensor of [images, labels]) tensor.dispose();
    }
    sums.push(sum);
  }
  assert.ok((sums.at(-1) as number) < (sums[0] as number), `${sums}`);
  assert.ok((engine.getLr()[0] as number) < 0.01);
  return finish(engine);
}

/** ReduceLROnPlateau receives its metric from step(); DeepSpeed uses lr_kwargs. */
async function plateau({ device }: Place): Promise<string> {
  const { engine } = await initialize({
    model: model(),
    config: {
      train_micro_batch_size_per_gpu: 2,
      optimizer: { type: 'Adam', params: { lr: 0.01 } },
      scheduler: { type: 'ReduceLROnPlateau', params: { factor: 0.5, patience: 0 } },
    },
    device,
  });
  const { tokens, targets } = batchOf(engine);
  const rates = [3, 2, 2, 2].map((metrics) => {
    engine.backward(engine.forward<Tensor>(tokens, targets));
    engine.step({ metrics });
    return engine.getLr()[0] as number;
  });
  assert.deepEqual(rates, [0.01, 0.01, 0.005, 0.0025]);
  for (const tensor of [tokens, targets]) tensor.dispose();
  return finish(engine);
}

/** If only rank 0 calls save, both ranks end within seconds with the cause. */
async function savedByOne(place: Place): Promise<void> {
  const config = { train_micro_batch_size_per_gpu: 2, optimizer: { type: 'Adam' } } as DsConfig;
  const { engine } = await initialize({ model: model(), config, device: place.device });
  trainStep(engine);
  const act = async (): Promise<void> => {
    if (place.rank === 0) await engine.saveCheckpoint(join(place.folder, 'one'));
    for (let step = 0; step < 3; ++step) trainStep(engine);
    engine.synchronize();
  };
  await expectRefusal(
    act,
    'DS_COMM',
    place.rank === 0 ? 'rank 1' : 'saveCheckpoint() must be called on all ranks',
  );
  // The job has failed: the process ends with it.
}

/** f32 inputs and targets for an fp16 model: the loss promotes f16 and f32. */
class SimpleModel extends nn.Module {
  readonly linear = new nn.Linear(8, 8);
  readonly loss = new nn.MSELoss();

  override forward(x: Tensor, y: Tensor): Tensor {
    return this.loss.call(this.linear.call(x.to('f16')), y);
  }
}

async function halfPrecision({ device }: Place): Promise<string> {
  seed(2);
  const { engine } = await initialize({
    model: new SimpleModel(),
    config: {
      train_micro_batch_size_per_gpu: 4,
      optimizer: { type: 'Adam', params: { lr: 0.01 } },
      fp16: { enabled: true, initial_scale_power: 8 },
    },
    device,
  });
  const rows = Float32Array.from({ length: 32 }, (_, i) => Math.sin(i));
  const [x, y] = [rows, rows.map((v) => v / 2)].map((data) =>
    Tensor.from(data, { shape: [4, 8], device: engine.device }),
  ) as [Tensor, Tensor];
  const losses = Array.from({ length: 8 }, () => {
    const loss = engine.forward<Tensor>(x, y);
    engine.backward(loss);
    engine.step();
    return loss.item();
  });
  assert.ok((losses.at(-1) as number) < (losses[0] as number), `${losses}`);
  for (const tensor of [x, y]) tensor.dispose();
  return finish(engine);
}

/** engine.optimizer.zeroGrad() in a loop over a loss of two engines. */
async function jointLoss({ device }: Place): Promise<string> {
  const config: DsConfig = {
    train_micro_batch_size_per_gpu: 2,
    optimizer: { type: 'AdamW', params: { lr: 0.01 } },
  };
  seed(4);
  const { engine: encoder } = await initialize({ model: mlp(4, 4), config, device });
  const { engine: decoder } = await initialize({ model: mlp(4, 2), config, device });
  const engines = [encoder, decoder];
  const x = Tensor.from([1, 2, 3, 4, 4, 3, 2, 1], { shape: [2, 4], device: encoder.device });
  const losses = Array.from({ length: 6 }, () => {
    for (const engine of engines) engine.optimizer.zeroGrad();
    const loss = decoder.forward<Tensor>(encoder.forward(x)).square().mean();
    loss.backward();
    for (const engine of engines) engine.step();
    return loss.item();
  });
  assert.ok((losses.at(-1) as number) < (losses[0] as number), `${losses}`);
  x.dispose();
  const hash = engines.map(hashOf).join();
  for (const engine of engines) engine.destroy();
  await leave();
  return hash;
}

export const programs: Program[] = [
  { page: 'getting-started', name: 'initialize with args and train', run: startTraining },
  { page: 'getting-started', name: 'save by tag, load, go on', run: saveCheckpoint },
  { page: 'getting-started', name: 'tags that differ', ranks: [2], run: ownTags },
  { page: 'cifar-10', name: 'arguments, loader, criterion', run: classifyImages },
  { page: 'training', name: 'SimpleModel in fp16', run: halfPrecision },
  { page: 'training', name: 'ReduceLROnPlateau', run: plateau },
  { page: 'training', name: 'joint loss of two engines', run: jointLoss },
  // Runs last, because the job has failed afterwards.
  { page: 'training', name: 'a save of rank 0 alone', ranks: [2], run: savedByOne },
];
