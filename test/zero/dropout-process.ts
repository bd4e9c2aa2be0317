// One rank that trains models with dropout on its samples of fixed global micro-batches and reports
// masks and weights.
import { initDistributed } from '../../lib/comm/index.js';
import { checkpoint, type DsConfig, type Engine, initialize, nn, Tensor } from '../../lib/index.js';
import { ones } from '../../lib/nn/initializers.js';
import { dropout, seed } from '../../lib/tensor/index.js';
import { tinyModel, tinyShape, weightBits } from '../e2e/tiny-training.js';

export interface DropoutJob {
  device: 'cpu' | 'cuda';
  stages: (0 | 2 | 3)[];
}

export interface DroppedOut {
  name: string;
  /** Of each forward: a row for each of this rank's samples. */
  masks: number[][][];
  /** Base64 of each parameter. */
  weights: Record<string, string>;
}

/** Samples of a micro-batch on all ranks. */
const GLOBAL = 8;
const STEPS = 2;
const MICROS = 2;
const [ROWS, WIDTH] = [3, 5];

/**
 * Values are powers of two and small integers, so no sum of the first step rounds, in any order. A
 * sample has 15 elements, so it ends inside a Philox block of 4.
 */
class ExactNet extends nn.Module {
  readonly first = new nn.Parameter([WIDTH], ones);
  readonly second = new nn.Parameter([WIDTH], ones);
  readonly masks: number[][][] = [];

  override forward(x: Tensor): Tensor {
    const samples = x.size(0);
    const through = (tensor: Tensor): Tensor => dropout(tensor, 0.5).mul(this.first);
    const hidden = checkpoint(through, x);
    const rows = hidden.reshape([samples * ROWS, WIDTH]);
    const out = dropout(rows, 0.5).mul(this.second);
    const values = out.detach().toArray();
    const size = ROWS * WIDTH;
    this.masks.push(
      Array.from({ length: samples }, (_, i) => values.slice(i * size, (i + 1) * size)),
    );
    return out.sum().mul(1 / (16 * samples));
  }
}

/** The rows of `values` [GLOBAL, width] that DistributedSampler gives this rank. */
function ownRows<Values extends Float32Array | Int32Array>(values: Values, engine: Engine): Values {
  const width = values.length / GLOBAL;
  const { globalRank: rank, worldSize: ranks } = engine;
  return values.filter((_, i) => Math.floor(i / width) % ranks === rank) as Values;
}

function exactLoss(engine: Engine, micro: number): Tensor {
  const all = Float32Array.from(
    { length: GLOBAL * ROWS * WIDTH },
    (_, i) => 1 + ((i * 7 + micro * 3) % 4),
  );
  const shape = [GLOBAL / engine.worldSize, ROWS, WIDTH];
  const x = Tensor.from(ownRows(all, engine), { shape, device: engine.device }).keep();
  const loss = engine.forward<Tensor>(x);
  x.dispose();
  return loss;
}

function tokensLoss(engine: Engine, micro: number): Tensor {
  const { seq, vocabulary } = tinyShape;
  const [tokens, targets] = [0, 1].map((shift) => {
    const all = Int32Array.from({ length: GLOBAL * seq }, (_, i) => {
      const [row, column] = [Math.floor(i / seq), (i % seq) + shift];
      return (column * 7 + row * 31 + micro * 13 + (column % 5) * row) % vocabulary;
    });
    const shape = [GLOBAL / engine.worldSize, seq];
    return Tensor.from(ownRows(all, engine), { shape, device: engine.device }).keep();
  }) as [Tensor, Tensor];
  const loss = engine.forward<Tensor>(tokens, targets);
  tokens.dispose();
  targets.dispose();
  return loss;
}

const sgd: DsConfig['optimizer'] = { type: 'SGD', params: { lr: 0.5 } };
const adam: DsConfig['optimizer'] = { type: 'AdamW', params: { lr: 3e-3 } };

interface Trained {
  build: () => nn.Module;
  loss: (engine: Engine, micro: number) => Tensor;
  optimizer: DsConfig['optimizer'];
  more?: DsConfig;
  steps?: number;
}

const models: Record<string, Trained> = {
  exact: { build: () => new ExactNet(), loss: exactLoss, optimizer: sgd },
  'GPT-2': { build: () => tinyModel({ dropout: 0.2 }), loss: tokensLoss, optimizer: adam },
  'GPT-2, checkpointed': {
    build: () => tinyModel({ dropout: 0.2, checkpointing: true }),
    loss: tokensLoss,
    optimizer: adam,
  },
  'GPT-2, layers and tokens left out': {
    build: () => tinyModel({ dropout: 0.2 }),
    loss: tokensLoss,
    optimizer: adam,
    more: {
      progressive_layer_drop: { enabled: true, theta: 0.2, gamma: 3 },
      data_efficiency: {
        enabled: true,
        data_routing: {
          enabled: true,
          random_ltd: {
            enabled: true,
            random_ltd_layer_id: [0],
            random_ltd_schedule: {
              min_value: 4,
              max_value: tinyShape.seq,
              schedule_config: { require_steps: 100, seq_per_step: 1 },
            },
          },
        },
      },
    },
    steps: 5,
  },
};

async function trainDropout(name: string, stage: 0 | 2 | 3): Promise<DroppedOut> {
  const { build, loss, optimizer, more, steps = STEPS } = models[name] as Trained;
  seed(4321);
  const model = build();
  const { engine } = await initialize({
    model,
    config: {
      train_batch_size: GLOBAL * MICROS,
      gradient_accumulation_steps: MICROS,
      optimizer,
      zero_optimization: { stage },
      ...more,
    },
  });
  for (let micro = 0; micro < steps * MICROS; ++micro) {
    engine.backward(loss(engine, micro));
    engine.step();
  }
  const weights = Object.fromEntries(weightBits(engine));
  engine.destroy();
  return { name: `${name}, stage ${stage}`, masks: (model as ExactNet).masks ?? [], weights };
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] ?? '') as DropoutJob;
  const world = await initDistributed(job.device === 'cpu' ? { device: 'cpu' } : {});
  const results: DroppedOut[] = [];
  for (const name of Object.keys(models)) {
    for (const stage of job.stages) results.push(await trainDropout(name, stage));
  }
  await world.destroy();
  console.log(JSON.stringify(results));
}

void main();
