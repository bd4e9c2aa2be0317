// A program under tuning: it trains with the ds_config.json in its arguments, and prints a line at
// the end.
import { readFileSync } from 'node:fs';

import { PipelineEngine } from '../../lib/engine/pipeline-engine.js';
import { initialize, type Tensor } from '../../lib/index.js';
import { tinyBatch, tinyModel } from '../e2e/tiny-training.js';

/** From this micro-batch size on, the program fails like a full device. */
const TOO_LARGE = 8;

async function main(): Promise<void> {
  const words = process.argv.slice(2);
  const after = (flag: string): string => words[words.indexOf(flag) + 1] as string;
  const config = after('--deepspeed');
  const model = tinyModel();
  const { engine } = await initialize({ model, config, device: 'cpu' });
  if (engine instanceof PipelineEngine) return inStages(engine);
  const size = Number(after('--batch'));
  if (size !== engine.trainMicroBatchSizePerGpu()) throw new Error(`--batch ${size}`);
  for (let step = 0; step < 6; ++step) {
    const { tokens, targets } = tinyBatch(step, engine.device, size);
    const loss = engine.forward<Tensor>(tokens, targets);
    if (size >= TOO_LARGE) throw new Error('DS_OUT_OF_MEMORY, as it may be');
    engine.backward(loss);
    engine.step();
    tokens.dispose();
    targets.dispose();
  }
  const { zero_optimization: zero } = JSON.parse(readFileSync(config, 'utf8'));
  console.log(`trained ${engine.globalSteps} steps of ${size} at stage ${zero?.stage}`);
  engine.destroy();
}

async function inStages(engine: PipelineEngine): Promise<void> {
  for (let step = 0; step < 6; ++step) {
    const { tokens, targets } = tinyBatch(step, engine.device, engine.trainMicroBatchSizePerGpu());
    const loss = await engine.trainBatch([[tokens, targets] as const].values());
    for (const tensor of [tokens, targets, loss]) tensor.dispose();
  }
  engine.destroy();
}

void main();
