// One rank that sums and leaves the job, and reports its open ports and threads on the way. It
// joins late if requested.
import { existsSync, readdirSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { initDistributed } from '../../lib/comm/index.js';
import { cpu, Tensor } from '../../lib/index.js';
import { listeningAddresses } from './listening.js';

/** The one argument, as JSON. */
export interface GuardedJob {
  /** Ranks other than 0 join after this file exists. */
  gate: string;
}

export interface GuardedReport {
  sum: number;
  /** Listening addresses of this process after every rank had joined. */
  addresses: string[];
  /** Threads after leaving, without threads from before joining and the addon's task threads. */
  threads: number;
}

/** Task threads of the addon, which start with the first task, such as joining. */
const TASK_THREADS = 2;

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
const threads = () => readdirSync('/proc/self/task').length;

async function main({ gate }: GuardedJob): Promise<void> {
  const x = Tensor.from([1, 2, 3], { device: cpu() });
  await x.read();
  // starts the threads of Node's pool
  await Promise.all(Array.from({ length: 8 }, () => readFile('/proc/self/status')));
  const before = threads() + TASK_THREADS;
  while (Number(process.env.RANK) > 0 && !existsSync(gate)) await sleep(10);
  const job = await initDistributed({ device: cpu(), timeout: 0.5 });
  job.world.allReduce(x).wait();
  const sum = Array.from(x.toArray(), Number).reduce((a, b) => a + b);
  job.world.barrier().synchronize(); // every rank has finished connecting
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
