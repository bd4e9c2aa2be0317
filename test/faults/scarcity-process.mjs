// Moves memory to disk and back, and starts a task, while the system refuses a resource: node
// test/faults/scarcity-process.mjs ADDON ENGINE FOLDER ARMED
import { writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const [path, engine, folder, armed] = process.argv.slice(2);
const addon = createRequire(import.meta.url)(path);
const PAGE = 4096;
const [BLOCK, DEPTH, CHECKERS] = [PAGE, 4, 2];
const stream = addon.open(0);
const memory = addon.allocatePinned(0, 4 * PAGE);
addon.setFileEngine(engine);
addon.keepWork(true);
writeFileSync(armed, '');

/** The result of `body`, or the code and message of its error. */
async function reported(body) {
  try {
    return await body();
  } catch (error) {
    return `${error.code} ${error.message}`;
  }
}

const swapped = await reported(() => {
  const tuning = Float64Array.of(BLOCK, DEPTH, CHECKERS, memory, 0, 4 * PAGE);
  const file = addon.openSwapFile(folder, 'state', 'a test', 4 * PAGE, tuning);
  const bytes = Uint8Array.from({ length: 4 * PAGE }, (_, i) => i % 251);
  addon.write(memory, 0, bytes, stream);
  addon.startSwap(file, true, 0, memory, 0, 4 * PAGE, stream);
  addon.waitSwap(file, memory, 0, 4 * PAGE, stream);
  addon.write(memory, 0, new Uint8Array(4 * PAGE), stream);
  addon.startSwap(file, false, 0, memory, 0, 4 * PAGE, stream);
  addon.waitSwap(file, memory, 0, 4 * PAGE, stream);
  const back = new Uint8Array(4 * PAGE);
  addon.read(memory, 0, back, stream);
  addon.releaseSwapFile(file);
  return back.every((byte, i) => byte === bytes[i]) ? 'swapped' : 'other bytes';
});
const asked = await reported(() => addon.syncPath(folder).then(() => 'asked'));
const traced = addon.takeWork().split('\n').length - 1;
console.log(JSON.stringify([swapped, asked, traced]));
