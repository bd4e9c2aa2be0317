// The training loop of the checkpoint page: it saves in the background, stops on request, and
// resumes.
import { createHash } from 'node:crypto';
import { existsSync, writeSync } from 'node:fs';

import {
  data,
  type Engine,
  findLatest,
  initDistributed,
  initialize,
  nn,
  seed,
  type Tensor,
} from '../../lib/index.js';

interface Window {
  tokens: Int32Array;
  targets: Int32Array;
}

const T = 8;
const windows: data.Dataset<Window> = {
  length: 50,
  get(index) {
    const row = Int32Array.from({ length: T + 1 }, (_, i) => (index * 7 + i * i) % 31);
    return { tokens: row.slice(0, T), targets: row.slice(1) };
  },
};

function hash(engine: Engine): string {
  const sum = createHash('sha256');
  engine.withFullWeights(() => {
    for (const parameter of engine.module.parameters()) sum.update(parameter.toRaw());
  });
  return sum.digest('hex');
}

interface Run {
  folder: string;
  steps: number;
  /** After this step the run waits until the file `signalled` exists. */
  waitsAt: number;
  signalled: string;
}

async function main({ folder, steps, waitsAt, signalled }: Run): Promise<void> {
  const job = await initDistributed();
  seed(7);
  const { engine, trainLoader } = await initialize({
    model: new nn.models.GPT2({
      vocabSize: 31,
      maxSeq: T,
      layers: 2,
      heads: 2,
      channels: 16,
      dropout: 0.1,
    }),
    trainingData: windows,
    device: 'cpu',
    config: {
      train_micro_batch_size_per_gpu: 2,
      gradient_accumulation_steps: 2,
      optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
      zero_optimization: { stage: 2 },
    },
  });
  if (await findLatest(folder)) await engine.loadCheckpoint(folder);
  void engine.stopSignal; // The engine handles signals from the first step on, not from its end.
  for await (const { tokens, targets } of new data.RepeatingLoader(trainLoader)) {
    const before = engine.globalSteps;
    engine.backward(engine.forward<Tensor>(tokens, targets));
    engine.step();
    tokens.dispose();
    targets.dispose();
    const { globalSteps, globalRank } = engine;
    if (globalSteps === before) continue;
    if (globalRank === 0) writeSync(1, `step ${globalSteps};\n`);
    if (globalSteps % 4 === 0) await engine.saveCheckpoint(folder, { asynchronous: true });
    if (globalSteps === waitsAt) while (!existsSync(signalled));
    if (engine.stopRequested || globalSteps >= steps) break;
  }
  await engine.saveCheckpoint(folder, { keepLast: 2 });
  const end = { rank: engine.globalRank, steps: engine.globalSteps, hash: hash(engine) };
  writeSync(1, `${JSON.stringify(end)}\n`);
  engine.destroy();
  await job.destroy();
}

const [folder, steps, waitsAt, signalled] = process.argv.slice(-4) as [string, ...string[]];
void main({ folder, steps: Number(steps), waitsAt: Number(waitsAt), signalled: signalled ?? '' });
