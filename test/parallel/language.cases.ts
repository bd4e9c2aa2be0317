// Tests that language models split by the configuration train like whole ones: equal initial
// weights and dropout, losses and weights to rounding.
import type { Case } from '../support/case.js';
import { equal } from './engine.cases.js';
import type { Leg } from './engine-process.js';

const MODELS = ['gpt2', 'llama'] as const;

const legs = (stages: readonly Leg['stage'][], more: Partial<Leg> = {}): Leg[] =>
  MODELS.flatMap((model) => stages.map((stage): Leg => ({ model, stage, steps: 10, ...more })));

export const overData: Case[] = [
  {
    name: 'tp 2 x dp 2 at ZeRO 0 to 3 equals dp 2',
    run: (device) =>
      equal(device, { mesh: { tp: 2 }, ranks: 4, legs: legs([0, 1, 2, 3], { micros: 1 }) }),
    gpus: 4,
  },
];

export const alone: Case[] = [
  {
    name: 'tp 2, with sequence parallelism too, equals one rank',
    run: (device) =>
      equal(device, {
        mesh: { tp: 2 },
        ranks: 2,
        legs: [...legs([0, 3]), ...legs([1], { sequence: true, micros: 3 })],
      }),
    gpus: 2,
  },
  {
    name: 'tp 4 with shared heads of keys and values equals one rank',
    run: (device) => {
      const llama: Leg = { model: 'llama', stage: 0, steps: 4 };
      // Frozen layers are replicated, with inputs from trained layers.
      const frozen = ['.1.', 'v_proj'].flatMap((part): Leg[] => [
        { ...llama, frozen: part },
        { ...llama, frozen: part, sequence: true },
      ]);
      return equal(device, { mesh: { tp: 4 }, ranks: 4, legs: [...legs([0, 2]), ...frozen] });
    },
    gpus: 4,
  },
  {
    name: 'tp 3 with 2, 1 and 1 heads equals one rank',
    run: (device) =>
      equal(device, {
        mesh: { tp: 3 },
        ranks: 3,
        legs: legs([1]).filter(({ model }) => model === 'gpt2'),
      }),
    gpus: 3,
  },
];

export const staged: Case[] = [
  {
    name: 'pp 2 x dp 2 x tp 2 at ZeRO 0 and 1 equals dp 2',
    run: (device) =>
      equal(device, { mesh: { pp: 2, tp: 2 }, ranks: 8, legs: legs([0, 1], { staged: true }) }),
    gpus: 8,
  },
];

export const cases: Case[] = [...alone, ...overData, ...staged];
