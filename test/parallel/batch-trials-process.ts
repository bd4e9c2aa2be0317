// One rank that trains on random meshes one after another, and reports how each training ends.
import { type Axis, type Distributed, initDistributed } from '../../lib/comm/index.js';
import {
  type DsConfig,
  DsError,
  type Engine,
  initialize,
  nn,
  noGrad,
  seed,
  Tensor,
} from '../../lib/index.js';
import { gate } from '../comm/gate.js';
import { STEPS, type Trial } from './batch-trials.js';

export interface TrialsJob {
  trials: Trial[];
}

const SIZES = { vocabSize: 67, maxSeq: 8, layers: 4, heads: 4, channels: 16 };
const ROWS = 2;

/** Training or evaluation; their batches differ. */
type Use = 'train' | 'eval';

function configOf({ stage, micros, isCut }: Trial, { mesh }: Distributed): DsConfig {
  const size = (axis: Axis): number => (isCut ? mesh.size(axis) : 1);
  return {
    train_micro_batch_size_per_gpu: ROWS,
    gradient_accumulation_steps: micros,
    optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
    zero_optimization: { stage },
    sequence_parallel_size: size('sp'),
    tensor_parallel: { autotp_size: size('tp') },
    ...(size('pp') > 1 ? { pipeline: { stages: size('pp') } } : {}),
  } as DsConfig;
}

/** Tokens and targets of a micro-batch; `trial` changes them on its rank. */
function batchOf(engine: Engine, trial: Trial, micro: number, use: Use): [Tensor, Tensor] {
  const { vocabSize, maxSeq } = SIZES;
  const { globalSteps: step, dpRank, device } = engine;
  const index = ((step * 2 + micro) * 2 + (use === 'eval' ? 1 : 0)) * 8 + dpRank;
  const isChanged =
    engine.globalRank === trial.rank &&
    step === trial.step &&
    micro === trial.micro &&
    (trial.what === 'evaluated') === (use === 'eval');
  const kind = isChanged ? trial.what : 'none';
  const all = [3, 5].map((salt) => {
    const one = (_: unknown, i: number) => (index * 31 + i * 17 + salt) % vocabSize;
    return Int32Array.from({ length: ROWS * maxSeq }, one);
  });
  const place = trial.place % (ROWS * maxSeq);
  const changed = kind === 'targets' ? all[1] : kind === 'tokens' ? all[0] : null;
  const both = kind === 'evaluated' ? all[trial.place % 2] : changed;
  if (both) both[place] = ((both[place] as number) + 1) % vocabSize;
  const rows = kind === 'shape' ? 1 : ROWS;
  return all.map((values) => {
    const ordered =
      kind === 'order'
        ? Int32Array.of(...values.slice(maxSeq), ...values.slice(0, maxSeq))
        : values;
    const shape = [rows, maxSeq];
    return Tensor.from(ordered.slice(0, rows * maxSeq), { shape, device }).keep();
  }) as [Tensor, Tensor];
}

async function step(engine: Engine, trial: Trial, use: Use): Promise<void> {
  const micros = trial.micros;
  const batches = Array.from({ length: micros }, (_, micro) => batchOf(engine, trial, micro, use));
  try {
    if ('trainBatch' in engine) {
      const { trainBatch, evalBatch } = engine as unknown as Record<
        'trainBatch' | 'evalBatch',
        (from: Iterator<unknown>) => Promise<Tensor>
      >;
      await (use === 'eval' ? evalBatch : trainBatch).call(engine, batches.values());
      return;
    }
    for (const [tokens, targets] of batches) {
      if (use === 'eval') {
        engine.eval();
        noGrad(() => engine.forward(tokens, targets));
        engine.train();
        continue;
      }
      engine.backward(engine.forward(tokens, targets));
      engine.step();
    }
  } finally {
    for (const tensor of batches.flat()) tensor.dispose();
  }
}

async function train(trial: Trial, job: Distributed): Promise<string> {
  seed(1234);
  const model = new nn.models.GPT2(SIZES);
  const { engine } = await initialize({ model, config: configOf(trial, job) });
  try {
    for (let i = 0; i < STEPS; ++i) {
      await step(engine, trial, 'eval');
      await step(engine, trial, 'train');
    }
    engine.synchronize();
    return `trained ${engine.globalSteps}`;
  } finally {
    engine.destroy();
  }
}

const messageOf = (error: unknown): string =>
  error instanceof DsError ? `${error.code} ${error.message}` : `Error ${String(error)}`;

async function main({ trials }: TrialsJob): Promise<void> {
  const reports: string[] = [];
  for (const [i, trial] of trials.entries()) {
    const job = await initDistributed({ mesh: trial.mesh, device: 'cpu' });
    reports.push(await train(trial, job).catch(messageOf));
    await job.destroy().catch(() => {});
    // The store of the last job must be gone before a rank joins the next one.
    await gate(`end of ${i}`);
  }
  console.log(JSON.stringify(reports));
}

void main(JSON.parse(process.argv[2] as string) as TrialsJob);
