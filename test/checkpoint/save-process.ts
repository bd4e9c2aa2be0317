// A rank that saves numbered checkpoints until it is killed: node save-process.ts JSON, see
// SaveJob.
import {
  type CheckpointContent,
  type LocalShard,
  saveCheckpoint,
} from '../../lib/checkpoint/index.js';
import { StoreWorld } from '../../lib/engine/saving/store-world.js';
import { Job, type StoreAddress } from '../../lib/runtime/job.js';
import { Tensor } from '../../lib/tensor/tensor.js';

export interface SaveJob {
  store: StoreAddress;
  rank: number;
  size: number;
  dir: string;
  /** A tag for all saves; null: a new tag each time, and the last two are kept. */
  tag: string | null;
  /** Size of each tensor, over all ranks. */
  kilobytes: number;
  first: number;
}

/** Every element of checkpoint number `n` is n, so that a mixture of two is visible. */
function contentOf({ rank, size, kilobytes }: SaveJob, n: number): CheckpointContent<LocalShard> {
  const fullValue = kilobytes * 256;
  const info = { dtype: 'f32' as const, shape: [fullValue] };
  const share = fullValue / size;
  const part = (name: string): LocalShard => {
    const tensor = Tensor.from(new Float32Array(share).fill(n)).keep();
    return { name, shape: info.shape, from: rank * share, tensor };
  };
  return {
    part: { data: rank, model: 0 },
    model: [part('a')],
    modelIsSharded: true,
    optimizer: [part('a.fp32'), part('a.exp_avg')],
    catalog: {
      model: new Map([['a', info]]),
      optimizer: new Map([
        ['a.fp32', info],
        ['a.exp_avg', info],
      ]),
    },
    state: { n },
    rankState: { n },
    description: null,
  };
}

async function main(job: SaveJob): Promise<void> {
  const { store, rank, size, dir, tag, first } = job;
  const joined = await Job.join({ store, rank, worldSize: size, timeout: 20_000 });
  const options = { rank, size, name: `from ${first}`, timeout: 20_000, check: () => {} };
  const world = new StoreWorld(joined, options);
  for (let n = first; ; ++n) {
    const content = contentOf(job, n);
    const target = { dir, tag: tag ?? `step${n}`, saveLatest: true };
    await saveCheckpoint({ ...target, keepLast: tag === null ? 2 : undefined }, content, world);
    for (const { tensor } of [...content.model, ...content.optimizer]) tensor.dispose();
    process.stdout.write(`${n}\n`);
  }
}

main(JSON.parse(process.argv[2] ?? '{}') as SaveJob).catch((error) => {
  process.stderr.write(`${error.code} ${error.message}\n`);
  process.exit(1);
});
