// A tutorial program as data, and helpers that many programs use.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  comm,
  type DsConfig,
  DsError,
  type DsErrorCode,
  type Engine,
  nn,
  seed,
  type Tensor,
} from '../../../lib/index.js';
import { tinyBatch, tinyModel, weightBits } from '../tiny-training.js';

/** Where a program runs. */
export interface Place {
  rank: number;
  worldSize: number;
  device: 'cpu' | 'cuda';
  /** An empty folder that all ranks share. */
  folder: string;
}

export interface Program {
  /** The page in docs/_tutorials of DeepSpeed. */
  page: string;
  name: string;
  /** World sizes to run on. Default: one and two. */
  ranks?: readonly number[];
  /** Returns a value that must be equal on all ranks. */
  run(place: Place): Promise<unknown>;
}

/** Writes a configuration as the tutorial prints it to a file of this rank. */
export function configFile({ folder, rank }: Place, text: string | DsConfig): string {
  mkdirSync(folder, { recursive: true });
  const path = join(folder, `ds_config.${rank}.json`);
  writeFileSync(path, typeof text === 'string' ? text : JSON.stringify(text));
  return path;
}

/** The model of most programs: a GPT-2 of 2 layers. */
export function model(): nn.models.GPT2 {
  seed(5);
  return tinyModel();
}

/** Two linear layers. */
export const mlp = (inputs: number, outputs: number): nn.Module =>
  new nn.Sequential(new nn.Linear(inputs, 16), new nn.LeakyReLU(), new nn.Linear(16, outputs));

/** One optimizer step on a fixed batch, as in the loop of a tutorial. */
export function trainStep(engine: Engine): number {
  let sum = 0;
  const micros = engine.gradientAccumulationSteps();
  for (let micro = 0; micro < micros; ++micro) {
    const { tokens, targets } = batchOf(engine, micro);
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    engine.step();
    sum += loss.item() / micros;
    for (const tensor of [tokens, targets]) tensor.dispose();
  }
  return sum;
}

export function batchOf(engine: Engine, micro = 0): { tokens: Tensor; targets: Tensor } {
  const index = engine.dpRank + engine.dpWorldSize * micro;
  return tinyBatch(index, engine.device, engine.trainMicroBatchSizePerGpu());
}

/** Runs `steps` steps and asserts that the loss falls. */
export function learn(engine: Engine, steps = 6): void {
  const losses = Array.from({ length: steps }, () => trainStep(engine));
  assert.ok(losses.every(Number.isFinite), `${losses}`);
  const [first, last] = [losses[0] as number, losses.at(-1) as number];
  assert.ok(last < first, `the loss went from ${first} to ${last}: ${losses}`);
}

/** Hash of all weights; equal on data-parallel ranks. */
export function hashOf(engine: Engine): string {
  const hash = createHash('sha1');
  for (const [name, bits] of weightBits(engine)) hash.update(name).update(bits);
  return hash.digest('hex');
}

/** Destroys the engine and leaves the job. */
export async function finish(engine: Engine): Promise<string> {
  const hash = hashOf(engine);
  engine.destroy();
  await leave();
  return hash;
}

export async function leave(): Promise<void> {
  await comm.distributed()?.destroy();
}

/** Asserts that the call throws this code, with a message that contains each of the words. */
export async function expectRefusal(
  call: () => unknown,
  code: DsErrorCode,
  ...words: readonly string[]
): Promise<void> {
  let thrown: unknown = null;
  try {
    await call();
  } catch (error) {
    thrown = error;
  }
  assert.ok(thrown instanceof DsError, `expected ${code}, got ${thrown}`);
  assert.equal(thrown.code, code, thrown.message);
  for (const word of words) assert.ok(thrown.message.includes(word), thrown.message);
}

/** Texts of the warnings that `body` causes on this rank. */
export async function warningsOf(body: () => Promise<unknown>): Promise<string[]> {
  const texts: string[] = [];
  const listen = ({ message }: Error): void => void texts.push(message);
  process.on('warning', listen);
  await body();
  await new Promise(setImmediate); // Node emits warnings after the code that caused them.
  process.off('warning', listen);
  return texts;
}
