// Programs of the pages getting-started, cifar-10, gan, bert-pretraining, bert-finetuning and
// megatron: initialize(), the loop, checkpoints, and the options of a command line.
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
  optim,
  parseConfigArguments,
  seed,
  Tensor,
} from '../../../../lib/index.js';
import {
  configFile,
  finish,
  hashOf,
  learn,
  leave,
  model,
  type Place,
  type Program,
  refused,
  trainStep,
} from '../program.js';

/** The page's configuration; `true` as ZeRO's section is stage 1. */
const STARTED = {
  train_batch_size: 8,
  gradient_accumulation_steps: 1,
  optimizer: { type: 'Adam', params: { lr: 0.00015 } },
  fp16: { enabled: true, initial_scale_power: 8 },
  zero_optimization: true,
} as unknown as DsConfig;

async function started(place: Place): Promise<string> {
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

/** Saves by the loss as a tag, loads by that tag, and goes on behind the step that was saved. */
async function checkpointed(place: Place): Promise<string> {
  const saveDir = join(place.folder, 'saved');
  const config = configFile(place, { ...STARTED, fp16: { enabled: false } });
  const first = (await initialize({ model: model(), config, device: place.device })).engine;
  let tag = '';
  for (let step = 0; step < 4; ++step) {
    trainStep(first);
    if (step % 2 !== 1) continue;
    // The page takes loss.item(), which differs from rank to rank.
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

/** The page saves under loss.item(), which differs from rank to rank: rank 0's tag counts. */
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

/** Half of the sides, as nn.MaxPool2d(2, 2) has it. */
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

/** Images [3, 16, 16] whose brightest channel and half say their class. */
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

/** The page's arguments: the program's own, then DeepSpeed's, by one parser. */
function cifarArguments(argv: readonly string[]) {
  const parser = new Command('CIFAR')
    .option('--with_cuda', "use CPU in case there's no GPU support", false)
    .option('--use_ema', 'whether to use an exponential moving average', false)
    .option('-b, --batch_size <n>', 'mini-batch size', Number, 32)
    .option('-e, --epochs <n>', 'total epochs', Number, 30)
    .option('--local_rank <n>', 'local rank passed from the launcher', Number, -1);
  return addConfigArguments(parser).parse(argv, { from: 'user' }).opts();
}

async function classified(place: Place): Promise<string> {
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

const GAN: DsConfig = {
  train_batch_size: 64,
  optimizer: { type: 'Adam', params: { lr: 0.0002, betas: [0.5, 0.999], eps: 1e-8 } },
  steps_per_print: 10,
};

const mlp = (inputs: number, outputs: number): nn.Module =>
  new nn.Sequential(new nn.Linear(inputs, 16), new nn.LeakyReLU(), new nn.Linear(16, outputs));

/** Two engines, each with a client's optimizer, as the page has them. */
async function adversarial(place: Place): Promise<string> {
  const config = configFile(place, GAN);
  seed(11);
  const [netD, netG] = [mlp(2, 1), mlp(4, 2)];
  const adam = (net: nn.Module) =>
    new optim.Adam(net.parameters(), { lr: 0.0002, betas: [0.5, 0.999] });
  const common = { config, device: place.device };
  const { engine: modelEngineD } = await initialize({
    ...{ ...common, model: netD, modelParameters: netD.parameters(), optimizer: adam(netD) },
  });
  const { engine: modelEngineG } = await initialize({
    ...{ ...common, model: netG, modelParameters: netG.parameters(), optimizer: adam(netG) },
  });
  const criterion = new nn.BCEWithLogitsLoss();
  const rows = modelEngineD.trainMicroBatchSizePerGpu();
  const of = (value: number, width: number, step: number): Tensor => {
    const data = Float32Array.from({ length: rows * width }, (_, i) => Math.sin(i * 3 + step));
    const { device } = modelEngineD;
    return value === 2
      ? Tensor.from(data, { shape: [rows, width], device })
      : Tensor.from(data.fill(value), { shape: [rows, width], device });
  };
  for (let step = 0; step < 3; ++step) {
    const [real, fake, noise] = [of(1, 1, step), of(0, 1, step), of(2, 4, step)];
    const data = of(2, 2, step);
    // D: real and generated samples, in one update.
    modelEngineD.optimizer.zeroGrad();
    const errDReal = criterion.call(modelEngineD.forward(data), real) as Tensor;
    const generated = modelEngineG.forward<Tensor>(noise);
    const errDFake = criterion.call(modelEngineD.forward(generated.detach()), fake) as Tensor;
    modelEngineD.backward(errDReal.add(errDFake));
    modelEngineD.step();
    // G: what D takes for real.
    modelEngineG.optimizer.zeroGrad();
    const judged = modelEngineD.forward<Tensor>(modelEngineG.forward(noise));
    modelEngineG.backward(criterion.call(judged, real) as Tensor);
    modelEngineD.optimizer.zeroGrad(); // What the loss of G left in D.
    modelEngineG.step();
    for (const tensor of [real, fake, noise, data]) tensor.dispose();
  }
  assert.equal(modelEngineD.globalSteps, 3);
  assert.equal(modelEngineG.globalSteps, 3);
  const hash = hashOf(modelEngineD) + hashOf(modelEngineG);
  modelEngineD.destroy();
  modelEngineG.destroy();
  await leave();
  return hash;
}

/** Parameters with and without weight decay, by their names, as BERT's pages group them. */
function grouped(net: nn.Module) {
  const named = [...net.namedParameters()];
  const noDecay = ['bias', 'ln_1', 'ln_2', 'ln_f'];
  const isFree = (name: string): boolean => noDecay.some((part) => name.includes(part));
  return [
    { params: named.filter(([name]) => !isFree(name)).map(([, p]) => p), weight_decay: 0.01 },
    { params: named.filter(([name]) => isFree(name)).map(([, p]) => p), weight_decay: 0.0 },
  ];
}

const BERT: DsConfig = {
  train_batch_size: 16,
  train_micro_batch_size_per_gpu: 4,
  steps_per_print: 1000,
  optimizer: {
    type: 'Adam',
    params: { lr: 2e-4, weight_decay: 0.01, bias_correction: false },
  },
  fp16: { enabled: true, loss_scale: 0, initial_scale_power: 16 },
};

/** The page's command line, whose other words are the program's. */
const PRETRAINING = [
  ...['--deepspeed', '--cf', 'bert_large_adam_seq128.json', '--train_batch_size', '4096'],
  ...['--max_seq_length', '128', '--gradient_accumulation_steps', '4', '--max_grad_norm', '1.0'],
  ...['--fp16', '--loss_scale', '0', '--delay_allreduce', '--max_steps', '32', '--print_steps'],
  ...['1', '--deepspeed_transformer_kernel', '--output_dir', 'output'],
];

async function pretrained(place: Place): Promise<string> {
  const file = configFile(place, BERT);
  const { args, rest } = parseConfigArguments([...PRETRAINING, '--deepspeed_config', file]);
  assert.deepEqual(args, { deepspeed: true, deepspeed_config: file });
  assert.deepEqual(rest, PRETRAINING.slice(1));
  await initDistributed({ device: place.device });
  const network = model();
  const { engine } = await initialize({ args, model: network, modelParameters: grouped(network) });
  assert.deepEqual(
    engine.optimizer.groups.map(({ weightDecay }) => weightDecay),
    [0.01, 0],
  );
  learn(engine);
  const path = join(place.folder, 'bert');
  const state = { epoch: 1, last_global_step: engine.globalSteps, last_global_data_samples: 96 };
  await engine.saveCheckpoint(path, { tag: 'epoch1', clientState: state });
  trainStep(engine);
  const { clientState } = await engine.loadCheckpoint(path, { tag: 'epoch1' });
  assert.deepEqual({ ...clientState }, state);
  assert.equal(engine.globalSteps, 6);
  return finish(engine);
}

/** max_grad_norm among the optimizer's params, as the page prints it, is named and refused. */
async function withMaxGradNorm({ device }: Place): Promise<void> {
  const { optimizer, ...rest } = BERT;
  const params = { ...optimizer?.params, max_grad_norm: 1.0 };
  const config = { ...rest, optimizer: { type: 'Adam', params } } as DsConfig;
  await refused(
    () => initialize({ model: model(), config, device }),
    'DS_CONFIG',
    'max_grad_norm',
    'gradient_clipping',
  );
  await leave();
}

/** An optimizer and a schedule of the client, as Megatron-LM's script gives them. */
async function megatron(place: Place): Promise<string> {
  const args = { deepspeed: true, deepspeed_config: configFile(place, { train_batch_size: 4 }) };
  const net = model();
  const optimizer = new optim.Adam(net.parameters(), { lr: 1e-3, weightDecay: 0.01 });
  const lrScheduler = new optim.WarmupDecayLr({
    ...{ totalSteps: 10, maxLr: 1e-3, warmupSteps: 2, warmupType: 'linear' },
  });
  const distributed = await initDistributed({ device: place.device });
  const { engine } = await initialize({ model: net, optimizer, args, lrScheduler, distributed });
  learn(engine);
  const sd = { iteration: engine.globalSteps };
  const path = await engine.saveCheckpoint(place.folder, { tag: '6', clientState: sd });
  assert.match(path, /6$/);
  assert.equal(engine.lossScale, 1); // optimizer.cur_scale on the page.
  return finish(engine);
}

/** Options of Python's that are not there are named, with those that there are. */
async function foreignOptions({ device }: Place): Promise<void> {
  const common = { model: model(), config: STARTED, device };
  for (const [name, value] of Object.entries({ mpu: {}, dist_init_required: false })) {
    const given = { ...common, [name]: value } as Parameters<typeof initialize>[0];
    await refused(() => initialize(given), 'DS_ARGUMENT', `"${name}"`, 'distributed');
  }
  await leave();
}

/** f32 inputs and targets of an fp16 model: the loss of f16 and f32 is promoted. */
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
  { page: 'getting-started', name: 'initialize with args and train', run: started },
  { page: 'getting-started', name: 'save by tag, load, go on', run: checkpointed },
  { page: 'getting-started', name: 'tags that differ', ranks: [2], run: ownTags },
  { page: 'cifar-10', name: 'arguments, loader, criterion', run: classified },
  { page: 'gan', name: 'two engines', run: adversarial },
  { page: 'bert-pretraining', name: 'groups, fp16, checkpoints', run: pretrained },
  { page: 'bert-pretraining', name: 'max_grad_norm is refused', run: withMaxGradNorm },
  { page: 'megatron', name: 'optimizer and schedule of the client', run: megatron },
  { page: 'megatron', name: 'mpu and dist_init_required are named', run: foreignOptions },
  { page: 'training', name: 'SimpleModel in fp16', run: halfPrecision },
  { page: 'training', name: 'joint loss of two engines', run: jointLoss },
];
