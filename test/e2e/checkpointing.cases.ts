// Activation checkpointing changes no bit: the same losses and weights with and without, dropout on.
import assert from 'node:assert/strict';
import type { Case } from '../support/case.js';
import { tinyEngine, trainTiny, weightBits } from './tiny-training.js';

export const cases: Case[] = [
  {
    name: 'activation checkpointing equals none, bf16 with dropout, 10 steps',
    async run(device) {
      device.setDeterministic(true);
      const options = { precision: 'bf16', offload: false, dropout: 0.1 } as const;
      const plain = await tinyEngine(options, device);
      const expected = trainTiny(plain, 0, 10);
      const checkpointed = await tinyEngine({ ...options, checkpointing: true }, device);
      assert.deepEqual(trainTiny(checkpointed, 0, 10), expected);
      const weights = weightBits(plain);
      for (const [name, bits] of weightBits(checkpointed))
        assert.equal(bits, weights.get(name), name);
      plain.destroy();
      checkpointed.destroy();
    },
  },
];
