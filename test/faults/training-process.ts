// One rank that trains the tiny GPT-2, saves, injects a chosen fault, and writes how it ended.
import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';

import { type Distributed, initDistributed } from '../../lib/comm/index.js';
import {
  type DsConfig,
  DsError,
  type Engine,
  initialize,
  type nn,
  type Tensor,
} from '../../lib/index.js';
import { seed } from '../../lib/tensor/index.js';
import { gate } from '../comm/gate.js';
import { tinyBatch, tinyConfig, tinyModel, weightBits } from '../e2e/tiny-training.js';
import { checkpointsOf, type Fault, noteOf, type Outcome, type Training } from './training-job.js';

const SAVE_EVERY = 3;

/**
 * Gathers units one by one and frees them after use, so that the order of modules is that of
 * collectives.
 */
const oneByOne: DsConfig['zero_optimization'] = {
  stage3_prefetch_bucket_size: 0,
  stage3_max_live_parameters: 0,
  stage3_max_reuse_distance: 0,
  stage3_param_persistence_threshold: 0,
};

async function build({ stage, offload, accumulation, resume }: Training): Promise<Engine> {
  seed(resume ? 99 : 1234);
  const model = tinyModel({ dropout: 0.1 });
  const zero = { stage, ...(stage === 3 ? oneByOne : {}) };
  const config = tinyConfig({ precision: 'fp32', offload, accumulation, zero });
  return (await initialize({ model, config })).engine;
}

/** Replaces the forward of the model's second layer. */
function replaceForward(engine: Engine, forward: () => never): void {
  const [, layer] = (engine.module as nn.models.GPT2).transformer.h;
  Object.assign(layer as object, { forward });
}

/** Prepares the fault before the step; true: skip the last micro-batch. */
function goWrong(engine: Engine, { kind }: Fault): boolean {
  switch (kind) {
    case 'raises':
      replaceForward(engine, () => {
        throw new Error('a mistake of the program');
      });
      return false;
    case 'loops':
      replaceForward(engine, () => {
        for (;;);
      });
      return false;
    case 'stops':
      process.kill(process.pid, 'SIGSTOP');
      return false;
    case 'reorders':
      (engine.module as nn.models.GPT2).transformer.h.reverse();
      return false;
    default:
      return kind === 'skips';
  }
}

function trainStep(engine: Engine, step: number, skipsLast: boolean): void {
  const micros = engine.gradientAccumulationSteps();
  for (let micro = 0; micro < micros - (skipsLast ? 1 : 0); ++micro) {
    const index = (step * micros + micro) * engine.worldSize + engine.globalRank;
    const { tokens, targets } = tinyBatch(index, engine.device);
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    engine.step();
    tokens.dispose();
    targets.dispose();
  }
}

async function save(engine: Engine, training: Training, fault: Fault | null): Promise<void> {
  const asynchronous = training.save === 'asynchronous';
  await engine.saveCheckpoint(checkpointsOf(training), { asynchronous, keepLast: 2 });
  if (engine.globalRank === 0) console.log(`saved at ${engine.globalSteps}`);
  if (fault?.kind !== 'dies saving') return;
  if (fault.delay) await pause(fault.delay);
  process.kill(process.pid, 'SIGKILL');
}

async function train(engine: Engine, training: Training): Promise<Outcome> {
  if (training.resume) await engine.loadCheckpoint(checkpointsOf(training));
  const { globalSteps: from, globalRank } = engine;
  const to = from + training.steps;
  for (let step = from; step < to; ++step) {
    const { fault } = training;
    const due = fault?.rank === globalRank && fault.step === step ? fault : null;
    trainStep(engine, step, due !== null && goWrong(engine, due));
    if (training.save === 'never' || (step + 1) % SAVE_EVERY !== 0) continue;
    await save(engine, training, due);
  }
  const hash = createHash('sha1');
  for (const [name, bits] of weightBits(engine)) hash.update(`${name} ${bits}`);
  return { from, to, hash: hash.digest('hex') };
}

async function failure(engine: Engine | null, error: unknown): Promise<Outcome> {
  const { message, stack = '' } = error as Error;
  const code = error instanceof DsError ? error.code : null;
  const saving = await engine?.checkpointDone().catch((reason: Error) => reason.message);
  return { error: { code, message, stack }, saving };
}

async function main(training: Training): Promise<void> {
  // The launcher sends SIGTERM to all ranks at the first failure; these ranks ignore it, to report
  // their errors.
  process.on('SIGTERM', () => {});
  let engine: Engine | null = null;
  let job: Distributed | null = null;
  const note = (outcome: Outcome) =>
    writeFileSync(noteOf(training, job?.rank ?? 0, 'end'), JSON.stringify(outcome));
  try {
    await gate();
    job = await initDistributed(training.device === 'cpu' ? { device: 'cpu' } : {});
    job.world.device.setDeterministic(true);
    writeFileSync(noteOf(training, job.rank, 'pid'), String(process.pid));
    engine = await build(training);
    note(await train(engine, training));
    engine.destroy();
    await job.destroy();
  } catch (error) {
    note(await failure(engine, error));
    throw error;
  }
}

void main(JSON.parse(process.argv.at(-1) as string) as Training);
