// A rank that ends during collectives, disk transfers, tasks and work of a worker.
import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { cpu, initDistributed, ones } from '../../lib/index.js';
import { addon, addonPath } from '../../lib/runtime/addon.js';
import { Buffer } from '../../lib/runtime/buffer.js';
import { type FileEngineName, setFileEngine, writeFile } from '../../lib/runtime/file.js';
import { SwapFile } from '../../lib/runtime/swap-file.js';

/** How a process ends. */
export type Ending = 'exit' | 'throw' | 'return' | 'terminate' | 'signal';

/** The one argument, as JSON. */
export interface ExitJob {
  ending: Ending;
  engine: FileEngineName;
  /** Folder of its files; some remain afterwards. */
  root: string;
  /** Duration of the work before the end. */
  milliseconds: number;
}

const SLOT = 1 << 20;
const SLOTS = 16;

/** Reads and writes without a wait. */
function swap(folder: string, buffer: Buffer): void {
  const memory = [{ buffer, offset: 0, bytes: SLOTS * SLOT }];
  const file = SwapFile.open({
    folder,
    label: 'state',
    purpose: 'a test',
    bytes: SLOTS * SLOT,
    blockBytes: 1 << 16,
    depth: 8,
    checkers: 2,
    memory,
  });
  for (let round = 0; round < 8; ++round) {
    for (let i = 0; i < SLOTS; ++i) {
      const range = { buffer, offset: i * SLOT, bytes: SLOT };
      if (round % 2 === 0) file.write(i * SLOT, range, cpu().compute);
      else file.read(i * SLOT, range, cpu().compute);
    }
  }
}

function worker(): Promise<Worker> {
  const result = new Worker(join(__dirname, 'terminate-worker.mjs'), {
    workerData: { addon: addonPath(), asynchronous: true },
  });
  return new Promise((resolve) => result.once('message', () => resolve(result)));
}

async function main({ ending, engine, root, milliseconds }: ExitJob): Promise<void> {
  const folder = mkdtempSync(join(root, 'rank-'));
  setFileEngine(engine);
  const beside = await worker();
  const job = await initDistributed({ device: 'cpu', timeout: 20 });
  const tensors = Array.from({ length: 4 }, () => ones([1 << 18]));
  const buffer = Buffer.allocatePinned(cpu(), SLOTS * SLOT);
  job.world.barrier().synchronize();
  addon.keepWork(true);
  for (let round = 0; round < 16; ++round) {
    for (const tensor of tensors) job.world.allReduce(tensor, { label: 'under way' });
  }
  swap(folder, buffer);
  const ranges = [{ buffer, offset: 0, bytes: SLOTS * SLOT }];
  for (let i = 0; i < 4; ++i) void writeFile(join(folder, `${i}`), { offset: 0, ranges });
  process.stdout.write('"under way"\n');
  await new Promise((resolve) => setTimeout(resolve, milliseconds));
  if (ending === 'exit') process.exit(0);
  if (ending === 'throw') throw new Error('as asked');
  if (ending === 'signal') process.kill(process.pid, 'SIGTERM');
  if (ending === 'terminate') await beside.terminate();
  else beside.unref();
}

main(JSON.parse(process.argv[2] ?? '{}') as ExitJob).catch((error) => {
  process.stderr.write(`${error}\n`);
  process.exit(3);
});
