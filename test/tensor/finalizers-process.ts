// Loses the only registry that has something to finalize, and then a tensor that no scope owns:
// node --expose-gc -r test/support/run-typescript.cjs test/tensor/finalizers-process.ts
import { setImmediate } from 'node:timers/promises';
import { zeros } from '../../lib/index.js';
import { liveTensors } from '../../lib/tensor/index.js';

const collect = gc as () => void;

/** Its object is found dead in the first collection, and it is itself in the second. */
function loseRegistry(): void {
  let registry: FinalizationRegistry<null> | null = new FinalizationRegistry<null>(() => {});
  ((it) => it.register({}, null))(registry);
  collect();
  registry = null;
}

async function main(): Promise<void> {
  await setImmediate();
  loseRegistry();
  collect();
  collect();
  await setImmediate();
  const before = liveTensors();
  (() => zeros([1024]))();
  for (let round = 0; round < 50 && liveTensors() > before; ++round) {
    await setImmediate();
    collect();
    for (let turn = 0; turn < 20; ++turn) await setImmediate();
  }
  process.stdout.write(`${liveTensors() - before} tensors left\n`);
}

void main();
