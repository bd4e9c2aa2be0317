// Loses the only registry that has something to finalize, and then a tensor without a scope, or a
// graph that a scope has returned. node --expose-gc -r test/support/run-typescript.cjs
// test/tensor/finalizers-process.ts tensor
import { setImmediate } from 'node:timers/promises';
import { scope, zeros } from '../../lib/index.js';
import { liveTensors } from '../../lib/tensor/index.js';

const collect = gc as () => void;

/** The first collection finds its object dead, the second one collects the registry. */
function loseRegistry(): void {
  let registry: FinalizationRegistry<null> | null = new FinalizationRegistry<null>(() => {});
  ((it) => it.register({}, null))(registry);
  collect();
  registry = null;
}

const weight = zeros([1024]).requireGrad();
const losable: Record<string, () => unknown> = {
  tensor: () => zeros([1024]),
  graph: () => scope(() => scope(() => weight.mul(zeros([1024]).add(1)).square()).sum()),
  'disposed graph': () => scope(() => weight.mul(zeros([1024]).add(1)).sum()).dispose(),
};

async function main(): Promise<void> {
  await setImmediate();
  loseRegistry();
  collect();
  collect();
  await setImmediate();
  const before = liveTensors();
  losable[process.argv[2] as string]?.();
  for (let round = 0; round < 50 && liveTensors() > before; ++round) {
    await setImmediate();
    collect();
    for (let turn = 0; turn < 20; ++turn) await setImmediate();
  }
  process.stdout.write(`${liveTensors() - before} tensors left\n`);
}

void main();
