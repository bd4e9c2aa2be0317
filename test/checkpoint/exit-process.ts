// A program that ends while a checkpoint is being saved: node exit-process.ts DIR
// returns|exits|throws|destroys.
import { initialize, seed } from '../../lib/index.js';
import { tinyConfig, tinyModel, trainTiny } from '../e2e/tiny-training.js';

async function main(dir: string, end: string): Promise<void> {
  seed(1);
  const config = tinyConfig({ precision: 'bf16', offload: false });
  const { engine } = await initialize({ model: tinyModel(), config, device: 'cpu' });
  trainTiny(engine, 0, 2);
  await engine.saveCheckpoint(dir, { tag: 't', asynchronous: true });
  if (end === 'exits') process.exit(3);
  if (end === 'throws') throw new Error('of the program');
  if (end === 'destroys') engine.destroy();
}

main(...(process.argv.slice(2) as [string, string]));
