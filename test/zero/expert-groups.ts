// A model with a dense layer and one expert for each rank, and its training on one rank or on two.
import {
  type DsConfig,
  type Engine,
  initialize,
  nn,
  optim,
  seed,
  Tensor,
} from '../../lib/index.js';

const BATCH = 4;
const STEPS = 3;
export const STAGES = [0, 1, 2, 3] as const;

export interface Trained {
  dense: number[];
  experts: number[][];
  norms: number[];
}

export const configOf = (stage: number, ranks: number): DsConfig => ({
  train_micro_batch_size_per_gpu: BATCH,
  train_batch_size: BATCH * ranks,
  zero_optimization: { stage: stage as 0, stage3_param_persistence_threshold: 0 },
});

const seededRandom = (from: number, inputs: number, outputs: number): nn.Linear => {
  seed(from);
  return new nn.Linear(inputs, outputs);
};

/** The expert of rank r maps the samples of rank r. */
export class Experts extends nn.Module {
  readonly dense: nn.Linear;
  readonly experts: nn.Linear[];

  constructor(readonly ranks: readonly number[]) {
    super();
    // The values of rank 0 count for the dense layer.
    this.dense = seededRandom(1 + (ranks[0] as number), 8, 16);
    this.experts = ranks.map((rank) => seededRandom(10 + rank, 16, 4));
  }

  /** The mean of the ranks' losses. */
  override forward(...samples: Tensor[]): Tensor {
    const losses = samples.map((x, i) => {
      const y = (this.experts[i] as nn.Linear).call(this.dense.call(x).relu());
      return y.mul(y).mean();
    });
    const sum = losses.reduce((all, tensor) => all.add(tensor));
    return sum.div(losses.length);
  }

  get ownParameters(): Tensor[] {
    return this.experts.flatMap((expert) => expert.parameters());
  }
}

const samplesOf = (rank: number, step: number): Tensor => {
  const values = Float32Array.from({ length: BATCH * 8 }, (_, i) => {
    return Math.sin(1 + i * 0.7 + rank * 3.1 + step * 1.3);
  });
  return Tensor.from(values, { shape: [BATCH, 8] });
};

export async function engineOf(
  model: Experts,
  config: DsConfig,
  options: object = {},
): Promise<Engine> {
  const groups = [
    { params: model.dense.parameters() },
    { params: model.ownParameters, weightDecay: 0.1, ...options },
  ];
  const optimizer = new optim.AdamW(groups, { lr: 0.01 });
  return (await initialize({ model, config, optimizer })).engine;
}

const valuesOf = (module: nn.Module): number[] =>
  module.parameters().flatMap((parameter) => (parameter.toArray() as number[]).flat(2));

/** Trains with the samples of the model's ranks. */
export function train(engine: Engine): Trained {
  const model = engine.module as Experts;
  const norms = Array.from({ length: STEPS }, (_, step) => {
    const samples = model.ranks.map((rank) => samplesOf(rank, step).to(engine.device));
    engine.backward(engine.forward(...samples));
    engine.step();
    return engine.getGlobalGradNorm() as number;
  });
  return engine.withFullWeights(() => ({
    dense: valuesOf(model.dense),
    experts: model.ranks.map((_, i) => valuesOf(model.experts[i] as nn.Linear)),
    norms,
  }));
}
