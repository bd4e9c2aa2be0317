// One rank of a model-parallel engine while one rank throws. It reports its own error, and then
// joins another job.
import { type Distributed, initDistributed, type MeshOptions } from '../../lib/comm/index.js';
import {
  type DsConfig,
  DsError,
  type Engine,
  initialize,
  nn,
  seed,
  Tensor,
} from '../../lib/index.js';
import { poll } from '../../lib/runtime/poll.js';
import { gate } from '../comm/gate.js';

/** An error in the second step. */
export interface ErrorLeg {
  mesh: MeshOptions;
  stage: 0 | 3;
  /** Whether it has experts. */
  mixture?: boolean;
  at: 'forward' | 'backward';
  /** The rank that throws; with 'all', every rank throws and skips that step. */
  rank: number | 'all';
}

export interface ErrorsJob {
  device: 'cpu' | 'cuda';
  legs: ErrorLeg[];
}

const SIZES = { vocabSize: 67, maxSeq: 8, layers: 2, heads: 4, channels: 16 };
const STEPS = 3;
const ROWS = 2;

function modelOf({ mixture }: ErrorLeg): nn.models.CausalLM {
  const { GPT2, Qwen3Moe } = nn.models;
  if (!mixture) return new GPT2(SIZES);
  return new Qwen3Moe({ ...SIZES, kvHeads: 2, hidden: 20, moe: { experts: 4, perToken: 2 } });
}

function configOf({ stage }: ErrorLeg, { mesh }: Distributed): DsConfig {
  return {
    train_micro_batch_size_per_gpu: ROWS,
    optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
    zero_optimization: { stage },
    sequence_parallel_size: mesh.size('sp'),
    tensor_parallel: { autotp_size: mesh.size('tp') },
    ...(mesh.size('pp') > 1 ? { pipeline: { stages: mesh.size('pp') } } : {}),
  } as DsConfig;
}

/** The last branch of this rank throws in the second step. */
function spoil(engine: Engine, at: ErrorLeg['at']): void {
  const named = [...engine.module.namedModules()].filter(([name]) => name.endsWith('mlp'));
  const [, layer] = named.at(-1) as [string, nn.Module];
  const fail = (): void => {
    if (engine.globalSteps === 1) throw new Error('a layer of mine');
  };
  if (at === 'forward') layer.registerForwardPreHook(fail);
  else layer.registerFullBackwardHook(fail);
}

async function step(engine: Engine): Promise<void> {
  const { device, globalSteps } = engine;
  const { vocabSize, maxSeq } = SIZES;
  const one = (_: unknown, i: number) => (globalSteps * 31 + i * 17) % vocabSize;
  const tokens = Int32Array.from({ length: ROWS * maxSeq }, one);
  const [inputs, labels] = [0, 1].map(() =>
    Tensor.from(tokens, { shape: [ROWS, maxSeq], device }).keep(),
  ) as [Tensor, Tensor];
  try {
    if ('trainBatch' in engine) {
      const train = engine.trainBatch as (from: Iterator<unknown>) => Promise<unknown>;
      await train.call(engine, [[inputs, labels]][Symbol.iterator]());
      return;
    }
    engine.backward(engine.forward(inputs, labels));
    engine.step();
  } finally {
    for (const tensor of [inputs, labels]) tensor.dispose();
  }
}

async function train(leg: ErrorLeg, job: Distributed): Promise<string> {
  seed(1234);
  const { engine } = await initialize({ model: modelOf(leg), config: configOf(leg, job) });
  if (leg.rank === 'all' || leg.rank === job.rank) spoil(engine, leg.at);
  let met = '';
  try {
    for (let i = 0; i < STEPS; ++i) {
      try {
        await step(engine);
      } catch (error) {
        met = messageOf(error);
        if (leg.rank !== 'all') return met;
        engine.zeroGrad();
      }
    }
    return `${met}, ${engine.globalSteps} steps, then ${engine.getGlobalGradNorm()}`;
  } finally {
    // The rank that threw stays until the others have the error.
    if (leg.rank !== 'all') await poll(() => isOver(job));
    engine.destroy();
  }
}

const messageOf = (error: unknown): string =>
  error instanceof DsError ? `${error.code} ${error.message}` : String(error);

function isOver({ world }: Distributed): boolean {
  try {
    world.check();
    return false;
  } catch {
    return true;
  }
}

async function main({ device, legs }: ErrorsJob): Promise<void> {
  const reports: string[] = [];
  for (const [i, leg] of legs.entries()) {
    const job = await initDistributed({
      mesh: leg.mesh,
      ...(device === 'cpu' ? { device } : {}),
    });
    reports.push(await train(leg, job).catch(messageOf));
    await job.destroy();
    // The store of the last job must be gone before a rank joins the next one.
    await gate(`end of ${i}`);
  }
  console.log(JSON.stringify(reports));
}

void main(JSON.parse(process.argv[2] as string) as ErrorsJob);
