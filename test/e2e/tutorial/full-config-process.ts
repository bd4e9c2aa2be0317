// Trains a tiny GPT-2 with a configuration file, in a process that writes to its working directory.
import { initialize, type Tensor } from '../../../lib/index.js';
import { tinyBatch, tinyModel, weightBits } from '../tiny-training.js';

/** The one argument, as JSON. */
export interface TutorialJob {
  config: string;
  device: string;
  /** Global steps. */
  steps: number;
}

export interface TutorialReport {
  /** Mean over each global step's micro-batches. */
  losses: number[];
  lossScale: number;
  skipped: number;
  rates: readonly number[];
  /** Number of parameters that changed. */
  moved: number;
  parameters: number;
  warnings: { code: string; message: string }[];
}

async function main({ config, device, steps }: TutorialJob): Promise<void> {
  const warnings: TutorialReport['warnings'] = [];
  process.on('warning', ({ message, ...rest }) => {
    warnings.push({ code: (rest as { code?: string }).code ?? '', message });
  });
  const { engine } = await initialize({ model: tinyModel(), config, device });
  const before = weightBits(engine);
  const losses: number[] = [];
  const micros = engine.gradientAccumulationSteps();
  const rows = engine.trainMicroBatchSizePerGpu();
  for (let step = 0; step < steps; ++step) {
    let sum = 0;
    for (let micro = 0; micro < micros; ++micro) {
      const { tokens, targets } = tinyBatch(micro, engine.device, rows);
      const loss = engine.forward<Tensor>(tokens, targets);
      engine.backward(loss);
      engine.step();
      sum += loss.item();
      for (const tensor of [tokens, targets]) tensor.dispose();
    }
    losses.push(sum / micros);
  }
  const after = weightBits(engine);
  const moved = [...after].filter(([name, bits]) => bits !== before.get(name)).length;
  const { lossScale, skippedSteps: skipped } = engine;
  const counts = { moved, parameters: after.size, skipped };
  await new Promise(setImmediate); // Node emits warnings after the code that caused them.
  const report: TutorialReport = { losses, lossScale, rates: engine.getLr(), ...counts, warnings };
  engine.destroy();
  console.log(JSON.stringify(report));
}

main(JSON.parse(process.argv[2] ?? '') as TutorialJob).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
