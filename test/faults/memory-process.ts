// One rank of a job with threads that run out of memory at some moment; prints its error.
import { rmSync, writeFileSync } from 'node:fs';
import { initDistributed } from '../../lib/comm/index.js';
import { DsError, Tensor } from '../../lib/index.js';

/** The one argument, as JSON. */
export interface MemoryJob {
  /** While this file exists, allocations fail. */
  armed: string;
  /** The rank with failing allocations. */
  culprit: number;
}

async function main({ armed, culprit }: MemoryJob): Promise<void> {
  const job = await initDistributed({ device: 'cpu' });
  const tensor = Tensor.from(new Float32Array(100).fill(1));
  let failure = '';
  for (let i = 0; !failure; ++i) {
    if (i === 1 && job.rank === culprit) writeFileSync(armed, '');
    try {
      job.world.allReduce(tensor).wait();
    } catch (error) {
      failure = error instanceof DsError ? `${error.code} ${error.message}` : String(error);
    }
  }
  // Memory is available again when rank 0 has its error.
  if (job.rank === 0) rmSync(armed, { force: true });
  await job.destroy();
  console.log(JSON.stringify(failure));
}

void main(JSON.parse(process.argv[2] as string) as MemoryJob);
