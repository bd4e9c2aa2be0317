// One rank of a job: ranks end at very different times, without a deadlock.
import { type Distributed, initDistributed } from '../../lib/comm/index.js';
import { cpu, DsError, device as findDevice, Tensor } from '../../lib/index.js';
import type { DeviceKind } from '../../lib/runtime/device.js';

/** How the early rank ends: with a result unread, outside a sub-group, or without destroy(). */
export type EvenEnd = 'unread' | 'sub-group' | 'undestroyed';

/** The one argument, as JSON. */
export interface EvenEndJob {
  kind: DeviceKind;
  end: EvenEnd;
}

export interface EvenEndReport {
  /** The message of the error; empty without an error. */
  message: string;
  /** The final value of the rank's tensor. */
  value: number;
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** The last rank issues its collectives long before the others, if the device allows that. */
async function unread({ world, rank }: Distributed, tensor: Tensor): Promise<void> {
  const last = world.size - 1;
  if (rank < last) await sleep(400 * (rank + 1));
  world.broadcast(tensor, last, { label: 'the last values' });
  if (rank < last) tensor.toArray();
}

/** All ranks except the last continue in a sub-group. */
async function subGroup(job: Distributed, tensor: Tensor): Promise<void> {
  const group = await job.newGroup(job.world.ranks.slice(0, -1));
  for (let i = 0; group && i < 20; ++i) {
    group.allReduce(tensor, { op: 'max', label: 'without the last' }).synchronize();
    await sleep(20);
  }
}

async function main({ kind, end }: EvenEndJob): Promise<void> {
  const on = kind === 'cpu' ? cpu() : findDevice(`cuda:${process.env.LOCAL_RANK}`);
  const job = await initDistributed({ device: on, timeout: 10 });
  const tensor = Tensor.from([job.rank], { device: on });
  job.world.barrier().synchronize();
  let message = '';
  let value = -1;
  try {
    if (end === 'unread') await unread(job, tensor);
    if (end === 'sub-group') await subGroup(job, tensor);
    // A program that ends without destroy() leaves the job too.
    if (end !== 'undestroyed' || job.rank !== 1) await job.destroy();
    value = Number(tensor.toArray()[0]);
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    message = error.message;
  }
  process.stdout.write(`${JSON.stringify({ message, value })}\n`);
  tensor.dispose();
}

main(JSON.parse(process.argv[2] ?? '{}') as EvenEndJob).catch((error) => {
  console.error(error);
  process.exit(7);
});
