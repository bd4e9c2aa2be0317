// One rank that initializes engines with settings that may differ from the other rank's, and
// reports how each attempt ends.
import { initDistributed } from '../../lib/comm/index.js';
import { type DsConfig, DsError, initialize, nn, optim, Tensor } from '../../lib/index.js';

export type Kind = 'plain' | 'wide' | 'reordered' | 'frozen' | 'longer' | 'buffered';

/** Settings of one rank that override the base. */
export interface Gift {
  config?: DsConfig;
  model?: Kind;
  /** Weight decays of the two groups of the caller's optimizer. */
  decays?: [number, number];
  /** Train batch size, set after initialize(). */
  batch?: number;
}

export interface AgreementJob {
  device: 'cpu' | 'cuda';
  /** By attempt, then by rank. */
  attempts: [Gift, Gift][];
}

export interface AgreementReport {
  /** The error of each attempt; null if the engine was built and trained. */
  errors: ({ code: string; op: string; message: string } | null)[];
  warnings: string[];
}

const BASE: DsConfig = {
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
  zero_optimization: { stage: 1 },
};

class Net extends nn.Module {
  declare readonly first: nn.Linear;
  declare readonly last: nn.Linear;

  constructor(kind: Kind) {
    super();
    const width = kind === 'wide' ? 8 : 6;
    const first = new nn.Linear(4, width);
    const last = new nn.Linear(width, 2);
    if (kind === 'frozen') first.bias?.requireGrad(false);
    Object.assign(this, kind === 'reordered' ? { last, first } : { first, last });
    if (kind === 'longer') Object.assign(this, { spare: new nn.Linear(2, 2) });
    if (kind === 'buffered') Object.assign(this, { table: Tensor.from([1, 2, 3]).keep() });
  }

  override forward(x: Tensor): Tensor {
    return this.last.call(this.first.call(x).tanh()).square().mean();
  }
}

async function train({ config, model: kind = 'plain', decays, batch }: Gift): Promise<void> {
  const model = new Net(kind);
  const groups = (decays ?? []).map((weightDecay, index) => ({
    params: model.parameters().slice(index * 2, index * 2 + 2),
    weightDecay,
  }));
  const optimizer = decays && new optim.AdamW(groups, { lr: 1e-2 });
  const { engine } = await initialize({ model, optimizer, config: { ...BASE, ...config } });
  const x = Tensor.from([[1, 2, 3, 4]], { device: engine.device }).keep();
  if (batch !== undefined) engine.setTrainBatchSize(batch);
  try {
    for (let micro = 0; micro < engine.gradientAccumulationSteps(); ++micro) {
      engine.backward(engine.forward<Tensor>(x));
      engine.step();
    }
    engine.synchronize();
  } finally {
    engine.destroy();
    x.dispose();
  }
}

function errorFields(error: unknown): AgreementReport['errors'][number] {
  if (!(error instanceof DsError)) throw error;
  const { code, op, message } = error;
  return { code, op, message };
}

async function main({ device, attempts }: AgreementJob): Promise<void> {
  const warnings: string[] = [];
  process.on('warning', ({ message }) => warnings.push(message));
  const job = await initDistributed(device === 'cpu' ? { device } : {});
  const errors: AgreementReport['errors'] = [];
  for (const gifts of attempts) {
    errors.push(await train(gifts[job.rank] as Gift).then(() => null, errorFields));
  }
  // Two engines at once: comparisons and the collectives after them keep one order on all ranks.
  if (errors.length > 1) await Promise.all([train({}), train({ model: 'wide' })]);
  const report: AgreementReport = { errors, warnings };
  console.log(JSON.stringify(report));
  // A rank with a refused configuration exits without a message, like a program that fails.
  if (errors.at(-1)?.code === 'DS_CONFIG') process.exit(0);
  await job.destroy().catch(() => {});
}

void main(JSON.parse(process.argv[2] ?? '') as AgreementJob);
