// Programs of the pages pipeline, autotp-training, ds-sequence, ulysses-alst-sequence-parallelism
// and mixture-of-experts: model parallelism.
import assert from 'node:assert/strict';
import {
  type DsConfig,
  data,
  initialize,
  LayerSpec,
  nn,
  PipelineModule,
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
  model,
  type Place,
  type Program,
} from '../program.js';

const PIPELINE: DsConfig = {
  train_batch_size: 16,
  train_micro_batch_size_per_gpu: 4,
  optimizer: { type: 'Adam', params: { lr: 0.01, betas: [0.9, 0.999], eps: 1e-8 } },
  steps_per_print: 10,
  wall_clock_breakdown: false,
};

/** Images [3, 8, 8] of 10 classes. */
const trainset = {
  length: 64,
  get(index: number): [Float32Array, Int32Array] {
    const label = index % 4;
    const bright = (i: number): number => (Math.floor(i / 48) === label ? 1 : 0);
    const image = Float32Array.from({ length: 192 }, (_, i) => bright(i) + 0.1 * Math.sin(i));
    return [image, Int32Array.of(label)];
  },
};

/** Collates samples for a pipeline: images [B, 3, 8, 8], labels [B]. */
function collate(samples: [Float32Array, Int32Array][], device: Tensor['device']) {
  const size = samples.length;
  const images = Float32Array.from(samples.flatMap(([image]) => [...image]));
  const labels = Int32Array.from(samples.map(([, [label]]) => label as number));
  return [
    Tensor.from(images, { shape: [size, 3, 8, 8], device }),
    Tensor.from(labels, { shape: [size], device }),
  ];
}

/** A small AlexNet: features, pooling by a function, a classifier. */
class AlexNet {
  readonly features = [
    new nn.Conv2d(3, 8, 3, { padding: 1 }),
    new nn.ReLU(),
    new nn.Conv2d(8, 8, 3, { padding: 1 }),
    new nn.ReLU(),
  ];
  readonly classifier = [
    new nn.Dropout(0.1),
    new nn.Linear(8 * 16, 16),
    new nn.ReLU(),
    new nn.Linear(16, 10),
  ];
}

const halve = (x: Tensor): Tensor => x.reshape([-1, 8, 4, 2, 4, 2]).mean({ dims: [3, 5] });
const flatten = (x: Tensor): Tensor => x.reshape([x.shape[0] as number, -1]);

/** The layers and functions of the model as one list. */
function joinLayers({ features, classifier }: AlexNet) {
  return [...features, halve, flatten, ...classifier];
}

const pipelineOf = (place: Place): PipelineModule => {
  seed(1138);
  return new PipelineModule({
    layers: joinLayers(new AlexNet()),
    lossFn: new nn.CrossEntropyLoss(),
    numStages: place.worldSize,
    partitionMethod: 'parameters',
    activationCheckpointInterval: 0,
  });
};

/** trainBatch() reads the loader of trainingData. */
async function trainBatch(place: Place): Promise<string> {
  const net = pipelineOf(place);
  const { engine } = await initialize({
    model: net,
    config: configFile(place, PIPELINE),
    trainingData: trainset,
    collate,
    modelParameters: net.parameters().filter((p) => p.requiresGrad),
    device: place.device,
  });
  const losses: number[] = [];
  for (let step = 0; step < 20; ++step) losses.push((await engine.trainBatch()).item());
  assert.ok((losses.at(-1) as number) < (losses[0] as number), `${losses}`);
  await expectRefusal(() => engine.forward(), 'DS_AUTOGRAD', 'trainBatch');
  engine.destroy();
  await leave();
  return losses.join();
}

/** trainBatch(iterator) with a RepeatingLoader, and evalBatch(). */
async function withIterator(place: Place): Promise<string> {
  const { engine } = await initialize({
    model: pipelineOf(place),
    config: configFile(place, PIPELINE),
    device: place.device,
  });
  const { device } = engine;
  const loader = new data.DataLoader(trainset, {
    batchSize: engine.trainMicroBatchSizePerGpu(),
    device,
    collate,
  });
  const trainIter = new data.RepeatingLoader(loader);
  const losses: number[] = [];
  for (let step = 0; step < 20; ++step) losses.push((await engine.trainBatch(trainIter)).item());
  assert.ok((losses.at(-1) as number) < (losses[0] as number), `${losses}`);
  const evaluated = (await engine.evalBatch(trainIter)).item();
  assert.ok(Number.isFinite(evaluated));
  engine.destroy();
  await leave();
  return losses.join();
}

/** A subclass that builds its layers from LayerSpecs. */
class AlexNetPipe extends PipelineModule {
  constructor(classes: number, numStages: number) {
    const specs = [
      new LayerSpec(nn.Conv2d, 3, 8, 3, { padding: 1 }),
      new LayerSpec(nn.ReLU),
      halve,
      flatten,
      new LayerSpec(nn.Linear, 8 * 16, classes),
    ];
    super({ layers: specs, lossFn: new nn.CrossEntropyLoss(), numStages });
  }
}

async function ofSpecs(place: Place): Promise<string> {
  seed(2);
  const { engine } = await initialize({
    model: new AlexNetPipe(10, place.worldSize),
    config: configFile(place, PIPELINE),
    trainingData: trainset,
    collate,
    device: place.device,
  });
  const losses: number[] = [];
  for (let step = 0; step < 6; ++step) losses.push((await engine.trainBatch()).item());
  assert.ok((losses.at(-1) as number) < (losses[0] as number), `${losses}`);
  engine.destroy();
  await leave();
  return losses.join();
}

/** Passes hidden states and a mask on, as arguments. The page uses a tuple. */
class Block extends nn.Module {
  readonly linear = new nn.Linear(8, 8);

  override forward(hidden: Tensor, mask: Tensor): [Tensor, Tensor] {
    return [this.linear.call(hidden).tanh().mul(mask), mask];
  }
}

class Last extends nn.Module {
  override forward(hidden: Tensor, _mask: Tensor): Tensor {
    return hidden;
  }
}

async function tuples(place: Place): Promise<string> {
  seed(3);
  const { engine } = await initialize({
    model: new PipelineModule({
      layers: [new Block(), new Block(), new Last()],
      lossFn: (outputs: Tensor, labels: Tensor) => outputs.sub(labels).square().mean(),
      numStages: place.worldSize,
    }),
    config: { ...PIPELINE, train_batch_size: 4 },
    device: place.device,
  });
  const { device } = engine;
  function* batches() {
    const rows = Float32Array.from({ length: 32 }, (_, i) => Math.sin(i));
    for (;;) {
      const [x, mask, y] = [rows, rows.map(() => 1), rows.map((v) => v / 2)].map((values) =>
        Tensor.from(values, { shape: [4, 8], device }),
      ) as [Tensor, Tensor, Tensor];
      yield [[x, mask], y];
    }
  }
  const trainIter = batches();
  const losses: number[] = [];
  for (let step = 0; step < 6; ++step) losses.push((await engine.trainBatch(trainIter)).item());
  assert.ok((losses.at(-1) as number) < (losses[0] as number), `${losses}`);
  engine.destroy();
  await leave();
  return losses.join();
}

const LLAMA = { layers: 2, heads: 4, kvHeads: 2, channels: 32, hidden: 48, maxSeq: 32 };

const llama = (): nn.models.Llama => {
  seed(6);
  return new nn.models.Llama({ vocabSize: 131, ...LLAMA });
};

/** Tensor parallelism with the model's own plan. */
async function autoTp(place: Place): Promise<string> {
  const config: DsConfig = {
    train_micro_batch_size_per_gpu: 2,
    optimizer: { type: 'AdamW', params: { lr: 3e-3 } },
    zero_optimization: { stage: 2 },
    bf16: { enabled: true },
    tensor_parallel: { autotp_size: place.worldSize, preset_model: 'llama' },
  };
  const { engine } = await initialize({ model: llama(), config, device: place.device });
  assert.equal(engine.mesh.size('tp'), place.worldSize);
  learn(engine);
  engine.destroy();
  await leave();
  return 'trained';
}

/** The patterns of the page replace the model's own plan. */
async function patterns(place: Place): Promise<string> {
  const config: DsConfig = {
    train_batch_size: 2,
    train_micro_batch_size_per_gpu: 2,
    optimizer: { type: 'AdamW', params: { lr: 3e-3 } },
    tensor_parallel: {
      autotp_size: place.worldSize,
      partition_config: {
        use_default_specs: false,
        layer_specs: [
          {
            patterns: ['.*\\.o_proj\\.weight$', '.*\\.down_proj\\.weight$'],
            partition_type: 'row',
          },
          {
            patterns: ['.*\\.[qkv]_proj\\.weight$', '.*\\.(gate|up)_proj\\.weight$'],
            partition_type: 'column',
          },
        ],
      },
    },
  } as DsConfig;
  const { engine } = await initialize({ model: llama(), config, device: place.device });
  learn(engine);
  engine.destroy();
  await leave();
  return 'trained';
}

/** Sequence parallelism: each rank passes whole samples, the engine splits their tokens. */
async function ulysses(place: Place): Promise<string> {
  const { engine } = await initialize({
    model: llama(),
    config: {
      train_micro_batch_size_per_gpu: 1,
      zero_optimization: { stage: 3 },
      optimizer: { type: 'Adam', params: { lr: 1e-3 } },
      sequence_parallel_size: place.worldSize,
    },
    device: place.device,
  });
  assert.equal(engine.mesh.size('sp'), place.worldSize);
  const ids = Int32Array.from({ length: 16 }, (_, i) => (7 * i) % 131);
  const { device } = engine;
  const tokens = Tensor.from(ids, { shape: [1, 16], device });
  const labels = Tensor.from(
    ids.map((_, i) => ids[(i + 1) % 16] as number),
    { shape: [1, 16], device },
  );
  const losses = Array.from({ length: 6 }, () => {
    const loss = engine.forward<Tensor>(tokens, labels);
    engine.backward(loss);
    engine.step();
    return loss.item();
  });
  assert.ok((losses.at(-1) as number) < (losses[0] as number), `${losses}`);
  for (const tensor of [tokens, labels]) tensor.dispose();
  return finish(engine);
}

/** A network with a mixture of experts after its last hidden layer. */
class Mixed extends nn.Module {
  readonly fc3 = new nn.Linear(8, 12);
  readonly moe = new nn.SparseMixture(12, 24, 4, { k: 1 });
  readonly fc4 = new nn.Linear(12, 10);
  readonly loss = new nn.CrossEntropyLoss();

  override forward(x: Tensor, labels: Tensor): Tensor {
    return this.loss.call(this.fc4.call(this.moe.call(this.fc3.call(x).relu())), labels);
  }
}

/**
 * Puts experts in a group of their own, like split_params_into_different_moe_groups_for_optimizer.
 */
function moeGroups(net: nn.Module) {
  const named = [...net.namedParameters()];
  const isExpert = (name: string): boolean => name.includes('.experts.');
  return [
    { params: named.filter(([name]) => !isExpert(name)).map(([, p]) => p), name: 'parameters' },
    { params: named.filter(([name]) => isExpert(name)).map(([, p]) => p), name: 'experts' },
  ];
}

async function mixture(place: Place): Promise<string> {
  seed(8);
  const net = new Mixed();
  const config = {
    train_micro_batch_size_per_gpu: 4,
    optimizer: { type: 'Adam', params: { lr: 0.01 } },
    fp16: { enabled: false, fp16_master_weights_and_grads: true },
    zero_optimization: {
      stage: 2,
      allgather_partitions: true,
      reduce_scatter: true,
      allgather_bucket_size: 50000000,
      reduce_bucket_size: 50000000,
      overlap_comm: true,
      contiguous_gradients: true,
      cpu_offload: true,
    },
  } as DsConfig;
  const { engine, optimizer } = await initialize({
    model: net,
    modelParameters: moeGroups(net),
    config,
    device: place.device,
  });
  assert.equal(optimizer.groups.length, 2);
  const { device } = engine;
  const rows = Float32Array.from({ length: 32 }, (_, i) => Math.sin(i * 5 + place.rank));
  const x = Tensor.from(rows, { shape: [4, 8], device });
  const labels = Tensor.from([0, 3, 6, 9], { shape: [4], device, dtype: 'i32' });
  const losses = Array.from({ length: 10 }, () => {
    const loss = engine.forward<Tensor>(x, labels);
    engine.backward(loss);
    engine.step();
    return loss.item();
  });
  assert.ok((losses.at(-1) as number) < (losses[0] as number), `${losses}`);
  for (const tensor of [x, labels]) tensor.dispose();
  const hash = hashOf(engine);
  engine.destroy();
  await leave();
  return hash;
}

/** The expert-parallel section of other frameworks throws with its name. */
async function expertParallel(place: Place): Promise<void> {
  const config = {
    train_micro_batch_size_per_gpu: 2,
    optimizer: { type: 'Adam' },
    expert_parallel: { enabled: true, autoep_size: 2 },
  } as DsConfig;
  await expectRefusal(
    () => initialize({ model: model(), config, device: place.device }),
    'DS_CONFIG',
    'expert_parallel',
  );
  await leave();
}

export const programs: Program[] = [
  { page: 'pipeline', name: 'trainBatch() of trainingData', run: trainBatch },
  { page: 'pipeline', name: 'trainBatch(iterator), evalBatch', run: withIterator },
  { page: 'pipeline', name: 'LayerSpecs', run: ofSpecs },
  { page: 'pipeline', name: 'several values between layers', run: tuples },
  { page: 'autotp-training', name: 'autotp_size', run: autoTp },
  { page: 'autotp-training', name: 'partition_config', run: patterns },
  { page: 'ulysses-alst-sequence-parallelism', name: 'sequence_parallel_size', run: ulysses },
  { page: 'mixture-of-experts', name: 'experts in groups', run: mixture },
  { page: 'mixture-of-experts', name: 'expert_parallel', run: expertParallel },
];
