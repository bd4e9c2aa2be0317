// Tests pipeline stages with layers split over tp, on several data ranks.
import type { Case } from '../support/case.js';
import { equal } from './engine.cases.js';

export const cases: Case[] = [
  {
    name: 'pp 2 x dp 2 x tp 2 at ZeRO 0 and 1 equals dp 2',
    run: (device) =>
      equal(device, {
        mesh: { pp: 2, tp: 2 },
        ranks: 8,
        legs: [{ stage: 0 }, { stage: 1 }, { stage: 1, offload: true, micros: 3 }],
      }),
    gpus: 8,
  },
];
