// A process that leaves an iteration with workers unfinished and has nothing else to do.
import { join } from 'node:path';

import { DataLoader, workerDataset } from '../../lib/data/index.js';

async function main(loop: string): Promise<void> {
  const data = workerDataset<number>({
    module: join(__dirname, 'worker-datasets.ts'),
    export: 'numbers',
    args: [100],
  });
  const loader = new DataLoader(data, { numWorkers: 2, collate: (samples) => samples });
  const iterator = loop === 'for' ? loader[Symbol.iterator]() : loader[Symbol.asyncIterator]();
  await iterator.next();
  await iterator.next();
  console.log('left after 2');
}

void main(process.argv[2] ?? '');
