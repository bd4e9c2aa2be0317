// One rank of a job with a chosen fault; prints the error that it ends with.
import { setTimeout as pause } from 'node:timers/promises';
import { type Distributed, initDistributed, type ProcessGroup } from '../../lib/comm/index.js';
import { cpu, DsError, device as findDevice, scope, Tensor } from '../../lib/index.js';
import type { DeviceKind } from '../../lib/runtime/device.js';
import type { Job } from '../../lib/runtime/job.js';
import { Stream } from '../../lib/runtime/stream.js';
import { gate } from './gate.js';

export type Fault =
  | 'none'
  | 'other-op'
  | 'other-size'
  | 'one-more'
  | 'stall'
  | 'never-came'
  | 'killed'
  | 'killed-busy'
  | 'killed-ahead'
  | 'killed-computing'
  | 'killed-groups'
  | 'killed-opening'
  | 'throws'
  | 'leaves'
  | 'leaves-ahead'
  | 'blocked';

/** The one argument, as JSON. */
export interface FaultJob {
  kind: DeviceKind;
  fault: Fault;
  /** The rank with the fault. */
  culprit: number;
  /** In minutes. */
  timeout: number;
}

export interface FaultReport {
  code: string;
  op: string;
  message: string;
  /** Whether a second call gave the same error. */
  same: boolean;
}

const print = (value: unknown) => process.stdout.write(`${JSON.stringify(value)}\n`);
const forever = () => new Promise<void>((resolve) => setTimeout(resolve, 3_600_000));

/** The fault of the culprit, in place of the third collective. */
async function misbehave(job: Distributed, fault: Fault, tensor: Tensor): Promise<void> {
  const { world } = job;
  switch (fault) {
    case 'other-op':
      return world.broadcast(tensor, 0, { label: 'the wrong one' }).synchronize();
    case 'other-size':
      return world.allReduce(tensor.alias([50]), { label: 'half of unit h.3' }).synchronize();
    case 'one-more':
      world.allReduce(tensor, { label: 'one more' }).synchronize();
      return world.allReduce(tensor, { label: 'gradients of unit h.3' }).synchronize();
    case 'stall':
    case 'never-came':
      return forever();
    case 'blocked': // JavaScript is blocked, but the process lives
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3_600_000);
      return;
    case 'killed':
    case 'killed-ahead':
    case 'killed-computing':
    case 'killed-groups':
    case 'killed-opening':
      while ((await job.store?.add('taking part', 0)) !== job.worldSize - 1) await pause(5);
      await pause(300); // By now the other collectives of the ranks are in flight.
      process.kill(process.pid, 'SIGKILL');
      return forever();
    case 'throws':
      throw new Error('a mistake of the program');
    default:
      return world.allReduce(tensor, { label: 'gradients of unit h.3' }).synchronize();
  }
}

interface Part {
  job: Distributed;
  fault: Fault;
  tensor: Tensor;
  stream: Stream;
  /** A second group of all ranks, if the fault needs one. */
  other: ProcessGroup | null;
}

/** Signals the culprit, which is about to die, that this rank waits for it. */
async function sayWaiting({ job, fault }: Part): Promise<void> {
  if (!fault.startsWith('killed') || fault === 'killed-busy') return;
  await pause(300); // A watchdog reports a collective some time after the call.
  await job.store?.add('taking part', 1);
}

/** The calls of the other ranks meanwhile. */
async function takePart(part: Part) {
  const { job, fault, tensor, stream, other } = part;
  if (fault === 'killed-opening') {
    const opened = job.newGroup(job.world.ranks);
    await Promise.all([opened, sayWaiting(part)]);
  }
  // More than the queue of a GPU's stream holds: the host itself blocks in the middle.
  const ahead = fault.endsWith('-ahead') ? 2000 : 0;
  const options = { stream, label: 'gradients of unit h.3' };
  let last = job.world.allReduce(tensor, options);
  await sayWaiting(part);
  if (fault === 'killed-computing') {
    // The queue fills after the one collective, with work that does not depend on it.
    last.wait();
    for (let i = 0; i < 5000; ++i) scope(() => void tensor.add(1));
    tensor.toArray();
  }
  // Each group's collectives are queued behind the other group's.
  for (let i = 0; other && i < 20; ++i) {
    other.allReduce(tensor, options);
    last = job.world.allReduce(tensor, options);
  }
  for (let i = 0; i < ahead; ++i) last = job.world.allReduce(tensor, options);
  last.synchronize();
}

async function main({ kind, fault, culprit, timeout }: FaultJob): Promise<void> {
  const on = kind === 'cpu' ? cpu() : findDevice(`cuda:${process.env.LOCAL_RANK}`);
  await gate();
  const job = await initDistributed({ device: on, timeout });
  const tensor = Tensor.from(new Float32Array(100).fill(1), { device: on });
  const stream = Stream.create(on);
  // With NCCL the first collective connects the ranks.
  const warmUps = fault === 'never-came' ? 0 : 2;
  for (let i = 0; i < warmUps; ++i) job.world.allReduce(tensor, { label: `warm-up ${i}` }).wait();
  tensor.toArray();
  const other = fault === 'killed-groups' ? await job.newGroup(job.world.ranks) : null;
  const store = job.store as Job;
  await store.add('warm', 1);
  if (fault.startsWith('leaves') && job.rank === culprit) {
    // All ranks must finish the warm-up before the job fails.
    while ((await store.add('warm', 0)) < job.worldSize) await pause(5);
    await job.destroy();
    print({ code: '', op: '', message: '', same: true });
    return;
  }
  const attempt = async (): Promise<DsError | null> => {
    try {
      if (job.rank === culprit) await misbehave(job, fault, tensor);
      else await takePart({ job, fault, tensor, stream, other });
      return null;
    } catch (error) {
      if (error instanceof DsError) return error;
      throw error;
    }
  };
  if (fault === 'killed-busy') print('busy');
  let first = await attempt();
  while (fault === 'killed-busy' && !first) first = await attempt();
  let again: DsError | null = null;
  try {
    job.world.barrier().synchronize();
    // A GPU may finish a mismatched collective before the ranks compare their calls.
    if (fault === 'one-more') await pause(500);
    job.world.barrier().synchronize();
  } catch (error) {
    again = error as DsError;
  }
  if (first) {
    const { code, op, message } = first;
    print({ code, op, message, same: again?.message === message });
  } else if (again) {
    print({ code: again.code, op: again.op, message: again.message, same: true });
  } else print({ code: '', op: '', message: '', same: true });
  await job.destroy();
  tensor.dispose();
}

main(JSON.parse(process.argv[2] ?? '{}') as FaultJob).catch((error) => {
  console.error(error);
  process.exit(7);
});
