// A process without free descriptors, so that Node starts no thread: node refused-thread-process.ts
// DIR. Prints the results of a loader and an asynchronous save.
import { openSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

import { DataLoader, workerDataset } from '../../lib/data/index.js';
import { type DsError, initialize } from '../../lib/index.js';
import { tinyConfig, tinyModel } from '../e2e/tiny-training.js';

const hook = join(__dirname, '..', 'support', 'run-typescript.cjs');

async function load(): Promise<string> {
  const data = workerDataset<number>({
    module: join(__dirname, '..', 'data', 'worker-datasets.ts'),
    export: 'numbers',
    args: [8],
  });
  const workerThread = { execArgv: ['-r', hook] };
  const loader = new DataLoader(data, {
    numWorkers: 1,
    workerThread,
    collate: (samples) => samples,
    device: 'cpu',
  });
  let batches = 0;
  for await (const _ of loader) batches++;
  await loader.close();
  return `${batches} batches`;
}

/** The result of `body`, or the code and message of its error. */
async function reportOf(body: () => Promise<string>): Promise<string> {
  try {
    return await body();
  } catch (error) {
    return `${(error as DsError).code} ${(error as Error).message}`;
  }
}

/** Takes all descriptors, including the ones that ending threads free. */
async function takeDescriptors(): Promise<void> {
  for (let taken = 1; taken > 0; await pause(200)) {
    try {
      for (taken = 0; ; ++taken) openSync('/dev/null', 'r');
    } catch {
      // There are no more.
    }
  }
}

async function main(dir: string): Promise<void> {
  const options = { precision: 'bf16', offload: false } as const;
  const { engine } = await initialize({ model: tinyModel(), config: tinyConfig(options) });
  const save = async (): Promise<string> => {
    await engine.saveCheckpoint(join(dir, 'checkpoints'), { asynchronous: true });
    await engine.checkpointDone();
    return 'saved';
  };
  const before = [await reportOf(load), await reportOf(save)];
  await takeDescriptors();
  console.log(JSON.stringify([...before, await reportOf(load), await reportOf(save)]));
  engine.destroy();
}

void main(process.argv[2] as string);
