// Programs of the pages gan, bert-pretraining, bert-finetuning and megatron: several engines,
// parameter groups, client optimizers and schedules.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import {
  type DsConfig,
  initDistributed,
  initialize,
  nn,
  optim,
  parseConfigArguments,
  seed,
  Tensor,
} from '../../../../lib/index.js';
import {
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

const GAN: DsConfig = {
  train_batch_size: 64,
  optimizer: { type: 'Adam', params: { lr: 0.0002, betas: [0.5, 0.999], eps: 1e-8 } },
  steps_per_print: 10,
};

/** Two engines, each with a client optimizer, as on the page. */
async function adversarial(place: Place): Promise<string> {
  const config = configFile(place, GAN);
  seed(11);
  const [netD, netG] = [mlp(2, 1), mlp(4, 2)];
  const adam = (net: nn.Module) =>
    new optim.Adam(net.parameters(), { lr: 0.0002, betas: [0.5, 0.999] });
  const common = { config, device: place.device };
  const { engine: modelEngineD } = await initialize({
    ...common,
    model: netD,
    modelParameters: netD.parameters(),
    optimizer: adam(netD),
  });
  const { engine: modelEngineG } = await initialize({
    ...common,
    model: netG,
    modelParameters: netG.parameters(),
    optimizer: adam(netG),
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
    // D: real and generated samples in one update. The page calls backward() for each of them.
    modelEngineD.optimizer.zeroGrad();
    const errDReal = criterion.call(modelEngineD.forward(data), real) as Tensor;
    const generated = modelEngineG.forward<Tensor>(noise);
    const errDFake = criterion.call(modelEngineD.forward(generated.detach()), fake) as Tensor;
    modelEngineD.backward(errDReal.add(errDFake));
    modelEngineD.step();
    // G: D should accept its samples as real.
    modelEngineG.optimizer.zeroGrad();
    const judged = modelEngineD.forward<Tensor>(modelEngineG.forward(noise));
    modelEngineG.backward(criterion.call(judged, real) as Tensor);
    modelEngineD.optimizer.zeroGrad(); // Drops the gradients of D from the loss of G.
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

/** Two backward() calls before one step(), as on the page, throw with the fix. */
async function twoBackwards({ device }: Place): Promise<void> {
  seed(11);
  const { engine } = await initialize({ model: mlp(2, 1), config: GAN, device });
  const rows = engine.trainMicroBatchSizePerGpu();
  const x = Tensor.from(new Float32Array(2 * rows), { shape: [rows, 2], device: engine.device });
  const [real, fake] = [1, 2].map((by) => engine.forward<Tensor>(x).mean().mul(by));
  engine.backward(real as Tensor);
  await expectRefusal(
    () => engine.backward(fake as Tensor),
    'DS_AUTOGRAD',
    'another backward()',
    'backward(real.add(fake))',
  );
  engine.step();
  x.dispose();
  await finish(engine);
}

/** Parameters with and without weight decay, grouped by name as on BERT's pages. */
function groupParameters(net: nn.Module) {
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

/** The command line of the page, with arguments of DeepSpeed and of the program. */
const PRETRAINING = [
  ...['--deepspeed', '--cf', 'bert_large_adam_seq128.json', '--train_batch_size', '4096'],
  ...['--max_seq_length', '128', '--gradient_accumulation_steps', '4', '--max_grad_norm', '1.0'],
  ...['--fp16', '--loss_scale', '0', '--delay_allreduce', '--max_steps', '32', '--print_steps'],
  ...['1', '--deepspeed_transformer_kernel', '--output_dir', 'output'],
];

async function trainPretrained(place: Place): Promise<string> {
  const file = configFile(place, BERT);
  const { args, rest } = parseConfigArguments([...PRETRAINING, '--deepspeed_config', file]);
  assert.deepEqual(args, { deepspeed: true, deepspeed_config: file });
  assert.deepEqual(rest, PRETRAINING.slice(1));
  await initDistributed({ device: place.device });
  const network = model();
  const { engine } = await initialize({
    args,
    model: network,
    modelParameters: groupParameters(network),
  });
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

/**
 * Command lines of other pages: the parser takes DeepSpeed's arguments and keeps the program's in
 * order.
 */
const COMMAND_LINES: readonly string[] = [
  '--dataset celeba --cuda --deepspeed_config FILE --tensorboard_path ./runs/deepspeed',
  '--log-interval 100 --deepspeed --moe --ep-world-size 2 --num-experts 2 4 --top-k 1 ' +
    '--mlp-type residual --noisy-gate-policy RSample --moe-param-group --deepspeed_config FILE',
  '--cf bert_large_lamb.json --max_seq_length 512 --print_steps 100 --deepspeed ' +
    '--deepspeed_transformer_kernel --deepspeed_config FILE --rewarmup --lr_schedule EE ' +
    '--lr_offset 0.0 --attention_dropout_checkpoint',
  '-s 100 -p 2 --backend nccl --seed 1138 --deepspeed --deepspeed_config=FILE',
  '--local_rank=0 --progressive_layer_drop --deepspeed --deepspeed-config FILE',
];

async function commandLines(): Promise<void> {
  for (const line of COMMAND_LINES) {
    const words = line.split(' ');
    const { args, rest } = parseConfigArguments(words);
    assert.equal(args.deepspeed_config, 'FILE');
    assert.equal(args.deepspeed ?? false, words.includes('--deepspeed'));
    const localTexts = words.filter(
      (word) => !/^--deepspeed([_-]config)?(=FILE)?$|^FILE$/.test(word),
    );
    assert.deepEqual(rest, localTexts);
  }
}

/** max_grad_norm in the optimizer's params, as the page prints it, throws with its name. */
async function withMaxGradNorm({ device }: Place): Promise<void> {
  const { optimizer, ...rest } = BERT;
  const params = { ...optimizer?.params, max_grad_norm: 1.0 };
  const config = { ...rest, optimizer: { type: 'Adam', params } } as DsConfig;
  await expectRefusal(
    () => initialize({ model: model(), config, device }),
    'DS_CONFIG',
    'max_grad_norm',
    'gradient_clipping',
  );
  await leave();
}

/** A client optimizer and schedule, as in the script of Megatron-LM. */
async function megatron(place: Place): Promise<string> {
  const args = { deepspeed: true, deepspeed_config: configFile(place, { train_batch_size: 4 }) };
  const net = model();
  const optimizer = new optim.Adam(net.parameters(), { lr: 1e-3, weightDecay: 0.01 });
  const lrScheduler = new optim.WarmupDecayLr({
    totalSteps: 10,
    maxLr: 1e-3,
    warmupSteps: 2,
    warmupType: 'linear',
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

/** Unknown options of the Python API throw, with the list of known options. */
async function foreignOptions({ device }: Place): Promise<void> {
  const common = { model: model(), config: GAN, device };
  for (const [name, value] of Object.entries({ mpu: {}, dist_init_required: false })) {
    const initializeOptions = { ...common, [name]: value } as Parameters<typeof initialize>[0];
    await expectRefusal(
      () => initialize(initializeOptions),
      'DS_ARGUMENT',
      `"${name}"`,
      'distributed',
    );
  }
  await leave();
}

export const programs: Program[] = [
  { page: 'cifar-10', name: 'command lines', ranks: [1], run: commandLines },
  { page: 'gan', name: 'two engines', run: adversarial },
  { page: 'gan', name: 'two backward() before a step', run: twoBackwards },
  { page: 'bert-pretraining', name: 'groups, fp16, checkpoints', run: trainPretrained },
  { page: 'bert-pretraining', name: 'max_grad_norm is refused', run: withMaxGradNorm },
  { page: 'megatron', name: 'optimizer and schedule of the client', run: megatron },
  { page: 'megatron', name: 'mpu and dist_init_required are named', run: foreignOptions },
];
