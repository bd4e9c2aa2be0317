// One rank that builds and trains the tiny GPT-2 under a list of settings and reports what became of each.
import { createHash } from 'node:crypto';
import { initDistributed } from '../../lib/comm/index.js';
import { DsError, type Engine, initialize } from '../../lib/index.js';
import {
  type TinyOptions,
  tinyConfig,
  tinyModel,
  trainTiny,
  weightBits,
} from '../e2e/tiny-training.js';

/** The one argument, as JSON. */
export interface WholeJob {
  device: string;
  settings: TinyOptions[];
}

/** The error of initialize(), or a hash of the trained weights. */
export type Outcome = Pick<DsError, 'code' | 'op' | 'expected' | 'got' | 'hint'> | string;

async function outcome(setting: TinyOptions): Promise<Outcome> {
  let engine: Engine;
  try {
    engine = (await initialize({ model: tinyModel(setting), config: tinyConfig(setting) })).engine;
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    const { code, op, expected, got, hint } = error;
    return { code, op, expected, got, hint };
  }
  trainTiny(engine, 0, 2);
  const hash = createHash('sha1');
  for (const bits of weightBits(engine).values()) hash.update(bits);
  engine.destroy();
  return hash.digest('hex');
}

async function main({ device, settings }: WholeJob): Promise<void> {
  const job = await initDistributed(device === 'cpu' ? { device } : {});
  const outcomes: Outcome[] = [];
  for (const setting of settings) outcomes.push(await outcome(setting));
  await job.destroy();
  console.log(JSON.stringify(outcomes));
}

void main(JSON.parse(process.argv[2] ?? '') as WholeJob);
