// Tests that memory at each stage matches the formula of the ZeRO paper, and that stage 3 holds at
// most its shards and one unit.
import assert from 'node:assert/strict';
import type { StateBytes } from '../../bench/zero-memory.js';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { FrozenBytes, MemoryReport, PeakBytes } from './memory-process.js';

/** Rounding of blocks, activations, control values of the step, scalars. */
const SLACK = 64 * 1024;

const memoryOn =
  (ranks: number) =>
  async (device: Device): Promise<void> => {
    const job = { device: device.kind };
    const results = await runRanks('../zero/memory-process', ranks, { job });
    for (const { stages, peaks, frozen } of reportsOf<MemoryReport>(results)) {
      for (const { stage, measured, formula, padding, params, allocated } of stages) {
        assert.ok(padding / params < 0.002, `${padding} elements of padding`);
        // The counter equals the sum of all parts, plus the rounding of blocks to eighths.
        const states = measured.weights + measured.optimizer;
        assert.ok(allocated >= states && allocated < states * 1.125 + SLACK, `${allocated}`);
        for (const kind of Object.keys(formula) as (keyof StateBytes)[]) {
          const ratio = measured[kind] / formula[kind];
          const place = `${kind} at stage ${stage} of ${ranks}: ${measured[kind]}`;
          assert.ok(Math.abs(ratio - 1) < 0.02, `${place}, formula ${formula[kind]}`);
        }
      }
      for (const peak of peaks) checkPeak(peak);
      for (const bytes of frozen) checkFrozen(device, bytes);
    }
  };

function checkPeak({ ranks, overlap, states, unit, parameter, model, ...peak }: PeakBytes): void {
  const within = (name: string, got: number, limit: number): void =>
    assert.ok(got <= limit + SLACK, `${name}: ${got} of ${limit} bytes`);
  within('states', states, (14 * model) / ranks);
  // One unit's weights in bf16, and the initial values of one parameter in f32.
  within('initialize', peak.initialize, states + 2 * unit + 4 * parameter);
  // The shards and their gradients, and weights and gradient of one unit. With overlap, the
  // previous gradient is in transfer.
  const shards = states + (2 * model) / ranks;
  within('step', peak.step, shards + 2 * unit + (overlap ? 2 : 1) * (2 * unit));
  // The bound is strict: the whole model in bf16 would not fit.
  assert.ok(2 * model > 6 * unit + 4 * parameter + SLACK);
}

/**
 * A rank keeps its shard of the frozen weights, on the device or the host, and gathers one unit at
 * a time.
 */
function checkFrozen(device: Device, bytes: FrozenBytes): void {
  const { ranks, offload, model, unit, onDevice, pinned, states, step } = bytes;
  assert.deepEqual(offload ? [0, pinned] : [onDevice, 0], [onDevice, pinned]);
  assert.equal(onDevice + pinned, model / ranks);
  // The CPU device counts page-locked memory.
  const kept = offload && device.kind !== 'cpu' ? 0 : model / ranks;
  const trained = 3 * SLACK;
  assert.ok(states <= kept + trained, `states: ${states} of ${kept} bytes`);
  assert.ok(step <= kept + 2 * unit + trained, `step: ${step} of ${kept + 2 * unit} bytes`);
  assert.ok(model > 3 * (2 * unit + trained));
}

export const cases: Case[] = [1, 2, 4].map((ranks) => ({
  name: `memory of stages 0 to 3 on ${ranks} ranks`,
  run: memoryOn(ranks),
  gpus: ranks,
}));
