// One rank of a pipeline of small layers: trains each leg, and reports the final state.
import { createHash } from 'node:crypto';
import { initDistributed } from '../../lib/comm/index.js';
import {
  crossEntropy,
  type DsConfig,
  initialize,
  LayerSpec,
  linear,
  nn,
  PipelineModule,
  seed,
  Tensor,
  TiedLayerSpec,
} from '../../lib/index.js';

/** A run from the initial weights. */
export interface Leg {
  schedule: '1f1b' | 'gpipe' | 'interleaved' | 'zero-bubble';
  micros: number;
  stage: 0 | 1;
  precision: 'fp32' | 'bf16' | 'fp16';
  offload?: boolean;
  checkpoint?: number;
  /** Freezes the first layers, which cover the first stage and more. */
  frozen?: boolean;
  /**
   * The head is the embedding. "twice": each stage also has a layer with shared weights. "crossed":
   * layers of the last stage share weights with the first stage, in another order.
   */
  tied?: boolean | 'twice' | 'crossed';
  /** Fraction of the offloaded state. */
  ratio?: number;
  /**
   * Path of a checkpoint after half of the steps; a leg with the path of another leg resumes from
   * it.
   */
  save?: string;
  from?: string;
  /** A language model instead of the small layers. */
  model?: 'gpt2' | 'llama' | 'phi3' | 'qwen3';
  /** Its blocks checkpoint only their inputs. */
  inputsOnly?: boolean;
  /** Samples of 3, 7 and then all 11 tokens. */
  grows?: boolean;
}

export interface PipelineJob {
  device: 'cpu' | 'cuda';
  pp: number;
  /** Ranks on tp, which hold replicas, because the model is not split. Default: 1. */
  tp?: number;
  legs: Leg[];
}

export interface LegReport {
  losses: number[];
  evaluated: number;
  norms: (number | null)[];
  /** Weights of this rank's parameters, by name. */
  weights: Record<string, string>;
  /** Sums of the same weights. */
  sums: Record<string, number>;
  samples: number;
}

const [VOCABULARY, CHANNELS, ROWS, STEPS] = [67, 32, 5, 4];

/** Norm, linear layers, dropout and residual. */
class Branch extends nn.Module {
  readonly norm = new nn.LayerNorm(CHANNELS);
  readonly up = new nn.Linear(CHANNELS, 2 * CHANNELS);
  readonly down = new nn.Linear(2 * CHANNELS, CHANNELS);
  readonly drop = new nn.Dropout(0.1);

  override forward(x: Tensor): Tensor {
    return x.add(this.drop.call(this.down.call(this.up.call(this.norm.call(x)).tanh())));
  }
}

const tiedEmbedding = () => new TiedLayerSpec('table', nn.Embedding, {}, VOCABULARY, CHANNELS);
const tiedHead = () =>
  new TiedLayerSpec(
    'table',
    nn.Embedding,
    { forward: (table, x) => linear(x as Tensor, (table as nn.Embedding).weight) },
    VOCABULARY,
    CHANNELS,
  );

const square = () => new TiedLayerSpec('square', nn.Linear, {}, CHANNELS, CHANNELS);
/** Of three stages, the first one has more own layers than the last one. */
const tiedTwice = () => [
  tiedEmbedding(),
  square(),
  new LayerSpec(Branch),
  new LayerSpec(Branch),
  square(),
  new LayerSpec(Branch),
  new LayerSpec(nn.LayerNorm, CHANNELS),
  square(),
  tiedHead(),
];

/** Multiplies with a weight that other layers may share. */
class Product extends nn.Module {
  constructor(readonly weight: nn.Parameter) {
    super();
  }

  override forward(x: Tensor): Tensor {
    return x.add(linear(x, this.weight));
  }
}

const tiedCrosswise = () => {
  const [one, two] = [0, 1].map(() => new nn.Linear(CHANNELS, CHANNELS).weight) as [
    nn.Parameter,
    nn.Parameter,
  ];
  return [
    new nn.Embedding(VOCABULARY, CHANNELS),
    new Product(one),
    new Product(two),
    new Product(two),
    new Product(one),
    new nn.Linear(CHANNELS, VOCABULARY),
  ];
};

export function model({ checkpoint: interval = 0, tied = false }: Leg): PipelineModule {
  const plain = () => [
    tied ? tiedEmbedding() : new nn.Embedding(VOCABULARY, CHANNELS),
    ...Array.from({ length: 5 }, () => new LayerSpec(Branch)),
    (x: Tensor) => x.mul(0.5),
    new LayerSpec(nn.LayerNorm, CHANNELS),
    tied ? tiedHead() : new LayerSpec(nn.Linear, CHANNELS, VOCABULARY),
  ];
  return new PipelineModule({
    layers: tied === 'twice' ? tiedTwice() : tied === 'crossed' ? tiedCrosswise() : plain(),
    lossFn: (logits: Tensor, targets: Tensor) => crossEntropy(logits, targets),
    partitionMethod: 'uniform',
    activationCheckpointInterval: interval,
  });
}

const sizes = { vocabSize: VOCABULARY, maxSeq: 16, layers: 4, heads: 4, channels: CHANNELS };

/** The rotary ones are untied, so that each parameter belongs to one stage. */
function languageModel({ model: name, inputsOnly = false }: Leg) {
  const settings = { ...sizes, activationCheckpointing: inputsOnly };
  const { GPT2, Llama, Phi3, Qwen3 } = nn.models;
  if (name === 'gpt2') return new GPT2({ ...settings, dropout: 0.1 });
  const rotary = { ...settings, hidden: 2 * CHANNELS, kvHeads: 2 };
  if (name === 'phi3') return new Phi3({ ...rotary, partialRotaryFactor: 0.5 });
  return name === 'llama' ? new Llama(rotary) : new Qwen3({ ...rotary, headDim: 16 });
}

/** An endless iterator over the micro-batches of data rank `rank` of `ranks`, for any process. */
function* batches(device: Tensor['device'], rank: number, ranks: number, columns: number) {
  for (let index = rank; ; index += ranks) {
    const shape = columns === 1 ? [ROWS] : [ROWS, columns];
    const draw = (salt: number) => {
      const one = (_: unknown, i: number) => (index * 31 + i * 17 + salt * 7) % VOCABULARY;
      return Tensor.from(Int32Array.from({ length: columns * ROWS }, one), { shape, device });
    };
    yield [draw(1), draw(2)] as const;
  }
}

const CURRICULUM: DsConfig['curriculum_learning'] = {
  enabled: true,
  min_difficulty: 3,
  max_difficulty: 11,
  schedule_type: 'fixed_discrete',
  schedule_config: { difficulty: [3, 7, 11], max_step: [1, 3] },
};

function configOf(leg: Leg, pp: number): DsConfig {
  const { schedule, micros, stage, precision, offload, ratio = 1, grows } = leg;
  return {
    train_micro_batch_size_per_gpu: ROWS,
    gradient_accumulation_steps: micros,
    gradient_clipping: 0.5,
    optimizer: { type: 'AdamW', params: { lr: 3e-3 } },
    zero_optimization: {
      stage,
      ...(offload ? { offload_optimizer: { device: 'cpu', ratio } } : {}),
    },
    ...(precision === 'fp32' ? {} : { [precision]: { enabled: true } }),
    pipeline: { stages: pp, schedule },
    ...(grows ? { curriculum_learning: CURRICULUM } : {}),
    seed: 1234,
  } as DsConfig;
}

async function train(leg: Leg, pp: number): Promise<LegReport> {
  seed(1234);
  const whole = leg.model ? languageModel(leg) : model(leg);
  if (leg.frozen && whole instanceof PipelineModule) {
    for (const [layer, part] of Object.entries(whole.layers)) part.requiresGrad_(Number(layer) > 5);
  }
  const config = configOf(leg, pp) as DsConfig & { pipeline: { stages: number } };
  const { engine } = await initialize({ model: whole, config });
  if (leg.from) await engine.loadCheckpoint(leg.from);
  const columns = leg.model ? 11 : 1;
  const data = batches(engine.device, engine.dpRank, engine.dpWorldSize, columns);
  // Skips the batches from before the checkpoint.
  for (let i = 0; i < engine.globalSteps * leg.micros; ++i) data.next();
  const [losses, norms]: [number[], (number | null)[]] = [[], []];
  while (engine.globalSteps < STEPS) {
    losses.push((await engine.trainBatch(data)).item());
    norms.push(engine.getGlobalGradNorm());
    if (leg.save && engine.globalSteps === STEPS / 2) await engine.saveCheckpoint(leg.save);
  }
  if (leg.save) await engine.save16bitModel(leg.save, 'weights.safetensors');
  const evaluated = (await engine.evalBatch(data, 3)).item();
  engine.synchronize();
  const weights: Record<string, string> = {};
  const sums: Record<string, number> = {};
  for (const [name, parameter] of engine.module.namedParameters()) {
    sums[name] = parameter.to('f32').abs().sum().item();
    weights[name] = createHash('sha1')
      .update(String(parameter.to('f32').toArray()))
      .digest('hex');
  }
  const samples = engine.globalSamples;
  engine.destroy();
  return { losses, evaluated, norms, weights, sums, samples };
}

async function main({ device, pp, tp = 1, legs }: PipelineJob): Promise<void> {
  const mesh = { pp, tp };
  const job = await initDistributed({ mesh, ...(device === 'cpu' ? { device } : {}) });
  job.world.device.setDeterministic(true);
  const reports: LegReport[] = [];
  for (const leg of legs) reports.push(await train(leg, pp));
  await job.destroy();
  console.log(JSON.stringify(reports));
}

if (process.argv[2]) void main(JSON.parse(process.argv[2]) as PipelineJob);
