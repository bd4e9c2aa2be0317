// Finalizers go on where the only registry with something to finalize has been collected itself.
import { setImmediate } from 'node:timers/promises';
import { collectGarbage } from './quiet.js';

/** Its object is found dead in the first collection, and it is itself in the second. */
function collectRegistry(): void {
  let registry: FinalizationRegistry<null> | null = new FinalizationRegistry<null>(() => {});
  ((it) => it.register({}, null))(registry);
  collectGarbage();
  registry = null;
}

test('finalizers run after a registry was collected before its own', async () => {
  await setImmediate();
  collectRegistry();
  collectGarbage();
  collectGarbage();
  await setImmediate();
  let finalized = 0;
  const registry = new FinalizationRegistry(() => finalized++);
  for (let round = 0; round < 50 && finalized === 0; ++round) {
    ((it) => it.register({}, null))(registry);
    await setImmediate();
    collectGarbage();
    for (let turn = 0; turn < 20; ++turn) await setImmediate();
  }
  expect(finalized).toBeGreaterThan(0);
});
