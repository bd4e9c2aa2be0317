// The memory of activations follows the closed formula in every checkpointing mode.
import assert from 'node:assert/strict';
import { type ActivationSetup, activationTable } from '../../bench/activations.js';
import type { Case } from '../support/case.js';

/** Tolerance for small tensors that the formula omits, as a fraction of the formula's bytes. */
const TOLERANCE = 0.05;

/** Sizes that the CPU allocator does not round up. */
const setup: ActivationSetup = {
  config: { vocabSize: 64, maxSeq: 128, layers: 8, heads: 4, channels: 128 },
  batch: 4,
  seq: 128,
  segments: 2,
  dtype: 'f32',
};

export const cases: Case[] = [
  {
    name: 'activation memory follows the formula: none, selective, segments, attention, full, cpu',
    run(device) {
      const { batch, seq, config } = setup;
      /** The embedding, the last norm and the loss's gradient: one tensor of the stream each. */
      const outside = 3 * batch * seq * config.channels * 4;
      const rows = activationTable(setup, device);
      for (const { mode, measured, formula } of rows) {
        for (const key of ['held', 'peak'] as const) {
          const error = Math.abs(measured[key] - formula[key]);
          const allowed = TOLERANCE * formula[key] + outside;
          const text = `${mode} ${key}: ${measured[key]} bytes, formula ${formula[key]}`;
          assert.ok(error <= allowed, text);
        }
      }
      const peaks = rows.map(({ measured }) => measured.peak);
      assert.deepEqual(
        peaks,
        [...peaks].sort((a, b) => b - a),
        'every mode needs less than the one before',
      );
    },
  },
];
