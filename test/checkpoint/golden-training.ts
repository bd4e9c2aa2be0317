// Short trainings for every kind of checkpoint: the recorder of the golden files, and the
// continuation that tests compare.
import {
  crossEntropy,
  type DsConfig,
  data,
  type Engine,
  embedding,
  initialize,
  nn,
  seed,
  Tensor,
} from '../../lib/index.js';
import { getRandomState } from '../../lib/tensor/index.js';
import type { JsonObject } from '../../types/json.js';

export interface Kind {
  /** Name of its folder. */
  name: string;
  ranks: 1 | 2;
  stage: 0 | 1 | 2 | 3;
  precision: 'fp32' | 'fp16' | 'bf16';
  optimizer: 'Adam' | 'AdamW' | 'Lamb' | 'Lion' | 'Muon' | 'SGD' | 'Adagrad';
  offload?: boolean;
  asynchronous?: boolean;
}

const kind = (name: string, ranks: 1 | 2, rest: Omit<Kind, 'name' | 'ranks'>): Kind => ({
  name,
  ranks,
  ...rest,
});

export const KINDS: readonly Kind[] = [
  kind('one-adamw', 1, { stage: 0, precision: 'fp32', optimizer: 'AdamW' }),
  kind('one-adam-fp16', 1, { stage: 1, precision: 'fp16', optimizer: 'Adam' }),
  kind('one-lamb-bf16', 1, { stage: 2, precision: 'bf16', optimizer: 'Lamb' }),
  kind('one-lion', 1, { stage: 0, precision: 'fp32', optimizer: 'Lion' }),
  kind('one-muon', 1, { stage: 0, precision: 'fp32', optimizer: 'Muon' }),
  kind('one-sgd', 1, { stage: 0, precision: 'fp32', optimizer: 'SGD' }),
  kind('one-adagrad', 1, { stage: 0, precision: 'fp32', optimizer: 'Adagrad' }),
  kind('one-offload-bf16', 1, {
    stage: 1,
    precision: 'bf16',
    optimizer: 'AdamW',
    offload: true,
    asynchronous: true,
  }),
  kind('two-stage0', 2, { stage: 0, precision: 'fp32', optimizer: 'AdamW' }),
  kind('two-stage1-offload', 2, {
    stage: 1,
    precision: 'bf16',
    optimizer: 'AdamW',
    offload: true,
  }),
  kind('two-stage1-muon', 2, { stage: 1, precision: 'fp32', optimizer: 'Muon' }),
  kind('two-stage2-fp16', 2, { stage: 2, precision: 'fp16', optimizer: 'AdamW' }),
  kind('two-stage3', 2, { stage: 3, precision: 'fp32', optimizer: 'AdamW', asynchronous: true }),
  kind('two-stage3-lamb-offload', 2, {
    stage: 3,
    precision: 'bf16',
    optimizer: 'Lamb',
    offload: true,
  }),
];

/** Global steps before the save, and after it. */
export const STEPS = { before: 3, after: 3 };
export const CLIENT_STATE: JsonObject = { epoch: 2, name: 'é', nested: { list: [1, null, 0.1] } };

const SIZES = { words: 7, channels: 6, hidden: 10, batch: 3, seq: 4 };

class Block extends nn.Module {
  readonly norm = new nn.LayerNorm(SIZES.channels);
  readonly up = new nn.Linear(SIZES.channels, SIZES.hidden);
  readonly down = new nn.Linear(SIZES.hidden, SIZES.channels, { bias: false });
  readonly dropout = new nn.Dropout(0.1);

  override forward(x: Tensor): Tensor {
    return this.dropout.call(this.down.call(this.up.call(this.norm.call(x)).gelu())).add(x);
  }
}

/** Two blocks, a frozen table and a buffer. */
export class GoldenModel extends nn.Module {
  readonly table = new nn.Embedding(SIZES.words, SIZES.channels);
  readonly places = new nn.Parameter([SIZES.seq, SIZES.channels], nn.init.normal(0.5));
  readonly blocks = [new Block(), new Block()];
  readonly head = new nn.Linear(SIZES.channels, SIZES.words);
  readonly seen = Tensor.from(new Int32Array(5));

  constructor() {
    super();
    this.places.requireGrad(false);
  }

  override forward(words: Tensor, targets: Tensor): Tensor {
    const numbers = Tensor.from(Int32Array.from({ length: SIZES.seq }, (_, i) => i));
    const x = this.table.call(words).add(embedding(this.places, numbers));
    const hidden = this.blocks.reduce((y, block) => block.call(y), x);
    const logits = this.head.call(hidden).reshape([-1, SIZES.words]);
    return crossEntropy(logits, targets.reshape([-1]));
  }
}

const PARAMS: Record<Kind['optimizer'], JsonObject> = {
  Adam: { lr: 1e-2 },
  AdamW: { lr: 1e-2, weight_decay: 0.1 },
  Lamb: { lr: 1e-2 },
  Lion: { lr: 1e-3 },
  Muon: { lr: 1e-2 },
  SGD: { lr: 1e-2, momentum: 0.9 },
  Adagrad: { lr: 1e-2 },
};

function configOf({ stage, precision, optimizer, offload }: Kind): DsConfig {
  return {
    train_micro_batch_size_per_gpu: SIZES.batch,
    gradient_clipping: 1,
    optimizer: { type: optimizer, params: PARAMS[optimizer] } as DsConfig['optimizer'],
    scheduler: {
      type: 'WarmupLR',
      params: { warmup_min_lr: 1e-3, warmup_max_lr: 1e-2, warmup_num_steps: 8 },
    },
    ...(precision === 'bf16' ? { bf16: { enabled: true } } : {}),
    ...(precision === 'fp16' ? { fp16: { enabled: true, initial_scale_power: 17 } } : {}),
    zero_optimization: {
      stage,
      ...(offload ? { offload_optimizer: { device: 'cpu', super_offload: false } } : {}),
    },
  };
}

export interface GoldenEngine {
  engine: Engine;
  loader: data.DataLoader<number, Tensor>;
}

export async function goldenEngine(what: Kind, from: number): Promise<GoldenEngine> {
  seed(from);
  const model = new GoldenModel();
  const { engine } = await initialize({ model, config: configOf(what), device: 'cpu' });
  const loader = new data.DataLoader<number, Tensor>({ length: 50, get: (i) => i }, { seed: 5 });
  engine.companions.set('loader', loader);
  return { engine, loader };
}

/** The report of a training about the steps after a checkpoint. */
export interface Continuation {
  losses: number[];
  /** Learning rates. */
  rates: number[];
  samples: number[];
  scaler: JsonObject;
  progress: JsonObject;
  random: JsonObject;
}

/** Global steps [from, to), each with the next sample of the loader. */
export async function trainGolden(
  { engine, loader }: GoldenEngine,
  from: number,
  to: number,
): Promise<Continuation> {
  const [losses, rates, samples]: [number[], number[], number[]] = [[], [], []];
  const batches = loader[Symbol.asyncIterator]();
  for (let step = from; step < to; ++step) {
    const sample = (await batches.next()).value as Tensor;
    samples.push(sample.item());
    const { batch, seq, words } = SIZES;
    const first = samples.at(-1) as number;
    const at = (shift: number) =>
      Tensor.from(
        Int32Array.from(
          { length: batch * seq },
          (_, i) => (i * 3 + first + shift + engine.globalRank) % words,
        ),
        { shape: [batch, seq] },
      );
    const [tokens, targets] = [at(0), at(1)];
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    engine.step();
    losses.push(loss.item());
    rates.push(engine.optimizer.groups[0]?.lr as number);
    for (const tensor of [tokens, targets, sample]) tensor.dispose();
  }
  await batches.return?.(undefined);
  engine.synchronize();
  const { parts, progress } = engine;
  return {
    losses,
    rates,
    samples,
    scaler: parts.scaler.state(),
    progress: { ...progress },
    random: { ...getRandomState() },
  };
}
