// A tiny GPT-2 and windows of patterned tokens for the tests of Trainer.
import { type data, nn, Trainer, type TrainerOptions } from '../../lib/index.js';
import { seed } from '../../lib/tensor/index.js';

export const SEQ = 9;
export const VOCABULARY = 61;

export interface Window {
  tokens: Int32Array;
  targets: Int32Array;
}

export function tinyModel(dropout = 0): nn.models.GPT2 {
  seed(7);
  return new nn.models.GPT2({
    vocabSize: VOCABULARY,
    maxSeq: 16,
    layers: 1,
    heads: 2,
    channels: 16,
    dropout,
  });
}

/** Sample i is a pattern with its own start; the number of counted targets varies. */
export function samples(length: number, first = 0, tokens = SEQ): data.Dataset<Window> {
  const get = (index: number): Window => {
    const start = 3 * (first + index) + 1;
    const run = Int32Array.from({ length: tokens + 1 }, (_, i) => (start + i * i) % VOCABULARY);
    const targets = run.slice(1);
    // Ignores between zero and nearly all targets.
    targets.fill(-100, 0, (5 * (first + index)) % (tokens + 1));
    return { tokens: run.slice(0, tokens), targets };
  };
  return { length, get };
}

/** The bits of each parameter, by name. */
export function weightsOf(module: nn.Module): Record<string, number[]> {
  return Object.fromEntries(
    Array.from(module.namedParameters(), ([name, tensor]) => [name, tensor.toArray()]),
  );
}

const open: Trainer<Window>[] = [];

/** Registers a Trainer for destroyTrainers(). */
export function noteTrainer(trainer: Trainer<Window>): Trainer<Window> {
  open.push(trainer);
  return trainer;
}

/** Ten samples in batches of two, with a log of each update; registered for destroyTrainers(). */
export function tinyTrainer(options: Partial<TrainerOptions<Window>>): Trainer<Window> {
  const usual = { model: tinyModel(), train: samples(10), device: 'cpu', progress: false };
  return noteTrainer(
    new Trainer<Window>({
      ...usual,
      lr: 3e-3,
      batchSize: 2,
      epochs: 1,
      log: { every: 1 },
      stopSignals: [],
      ...options,
    }),
  );
}

/** Call after each test. */
export async function destroyTrainers(): Promise<void> {
  for (const trainer of open.splice(0)) await trainer.destroy();
}
