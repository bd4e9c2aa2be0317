// Measures the updates of a Trainer, and creates the rows of the DPO and GRPO benchmarks.
import { seed, Trainer, type TrainerOptions } from '../lib/index.js';
import type { CausalLM } from '../lib/models/index.js';
import { device as findDevice } from '../lib/runtime/device.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';

/** Rows that differ from each other at every position. */
export function tokensOf(row: number, length: number, vocabulary: number): Int32Array {
  return Int32Array.from(
    { length },
    (_, i) => ((row + 1) * 7919 + i * 31 + (i % 7) * row + 1) % vocabulary,
  );
}

export const datasetOf = <Sample>(length: number, get: (index: number) => Sample) => ({
  length,
  get,
});

/** Times of the updates after `warmUp`, in milliseconds. */
interface Timed {
  updates: number;
  mean: number;
  /** Mean processor time of all threads, in milliseconds: it depends less on other processes. */
  processor: number;
  /** Metrics of the last log, and seconds of each phase of rollouts. */
  metrics: Record<string, number>;
  phases: { generate: number; reward: number; score: number } | null;
  peaks: { peak_device_gib: number; peak_device_reserved_gib: number };
}

export async function timedUpdates(
  options: Partial<TrainerOptions>,
  { steps, warmUp, place }: { steps: number; warmUp: number; place: string },
): Promise<Timed> {
  const device = findDevice(place);
  const trainer = new Trainer({
    device: place,
    seed: 1,
    lr: 1e-6,
    schedule: 'constant',
    maxSteps: warmUp + steps,
    log: { every: 1 },
    progress: false,
    stopSignals: [],
    ...options,
  } as TrainerOptions);
  let begin = Number.NaN;
  let until = Number.NaN;
  let used = process.cpuUsage();
  let metrics: Record<string, number> = {};
  const phases = { generate: 0, reward: 0, score: 0 };
  let generations = 0;
  const started = performance.now();
  for await (const event of trainer.train()) {
    if (event.type === 'log') metrics = { loss: event.loss, ...event.metrics };
    if (event.type === 'rollout' && event.step >= warmUp) {
      generations += 1;
      phases.generate += event.seconds.generate;
      phases.reward += event.seconds.reward;
      phases.score += event.seconds.score;
    }
    if (event.type !== 'step') continue;
    if (event.step === warmUp) {
      device.synchronize();
      begin = performance.now();
      used = process.cpuUsage();
      console.error(`seconds to the end of the warm-up: ${(begin - started) / 1000}`);
    }
    if (event.step !== warmUp + steps) continue;
    device.synchronize();
    until = performance.now();
    used = process.cpuUsage(used);
  }
  const { peakInUse, peakReserved } = device.memory;
  await trainer.destroy();
  return {
    updates: steps,
    mean: (until - begin) / steps,
    metrics,
    processor: (used.user + used.system) / 1000 / steps,
    phases: generations > 0 ? phases : null,
    peaks: {
      peak_device_gib: peakInUse / 2 ** 30,
      peak_device_reserved_gib: peakReserved / 2 ** 30,
    },
  };
}

export const trainingConfig = (precision: string): object => ({
  ...(precision === 'fp32' ? {} : { [precision]: { enabled: true } }),
  gradient_clipping: 1,
  zero_optimization: { stage: 0 },
});

/** The same model at each call. */
export function seededModel(options: Options, seq: number): CausalLM {
  seed(1);
  return benchModel(options, seq);
}
