// One rank that joins late if told so, sums, leaves, and reports its open ports and threads on the
// way.
import { existsSync, readdirSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { initDistributed } from '../../lib/comm/index.js';
import { cpu, Tensor } from '../../lib/index.js';
import { listeningAddresses } from './listening.js';

/** The one argument, as JSON. */
export interface GuardedJob {
  /** The file whose coming into being ranks other than 0 await before they join. */
  gate: string;
}

export interface GuardedReport {
  sum: number;
  /** What this process listened on when every rank had joined. */
  addresses: string[];
  /** Threads after leaving beyond those before joining and the addon's own for tasks. */
  threads: number;
}

/** Of the addon, from its first task on: joining is one. */
const TASK_THREADS = 2;

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
const threads = () => readdirSync('/proc/self/task').length;

async function main({ gate }: GuardedJob): Promise<void> {
  const x = Tensor.from([1, 2, 3], { device: cpu() });
  await x.read();
  await Promise.all(Array.from({ length: 8 }, () => readFile('/proc/self/status'))); // Node's pool
  const before = threads() + TASK_THREADS;
  while (Number(process.env.RANK) > 0 && !existsSync(gate)) await sleep(10);
  const job = await initDistributed({ device: cpu(), timeout: 0.5 });
  job.world.allReduce(x).wait();
  const sum = Array.from(x.toArray(), Number).reduce((a, b) => a + b);
  job.world.barrier().synchronize(); // every rank is through with connecting
  const addresses = listeningAddresses(process.pid);
  job.world.barrier().synchronize();
  await job.destroy();
  x.dispose();
  for (let i = 0; i < 3000 && threads() > before; ++i) await sleep(20);
  const report: GuardedReport = { sum, addresses, threads: threads() - before };
  process.stdout.write(`${JSON.stringify(report)}\n`);
}

main(JSON.parse(process.argv[2] ?? '{}') as GuardedJob).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
