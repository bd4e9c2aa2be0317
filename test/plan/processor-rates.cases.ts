// Tests the measured rates of CPU and GPU, and the balanced share of the update.
import assert from 'node:assert/strict';
import { balancedShare, measureRates, passRate } from '../../lib/plan/processor-rates.js';
import type { Case } from '../support/case.js';

/** Seconds per parameter on the host, and on PCIe for the bytes of both directions. */
function times(share: number, host: number, link: number): [number, number] {
  return [(1 - share) / host, (share * 12 + (1 - share) * 2) / link];
}

export const cases: Case[] = [
  {
    name: 'with the balanced share PCIe has enough of three quarters of the time of the threads',
    run() {
      for (const [host, link] of [
        [3.5e9, 39e9],
        [1e9, 50e9],
        [7e9, 25e9],
      ] as const) {
        const share = balancedShare({ host, link }, { state: 12, element: 2, gathered: 0 });
        const [one, other] = times(share, host, link);
        assert.ok(Math.abs(0.75 * one - other) < 1e-6 * one, `${one} and ${other} s at ${share}`);
      }
    },
  },
  {
    name: 'a link that has enough to do with gradients and weights of the host gets no state to carry',
    run() {
      const share = balancedShare(
        { host: 8e9, link: 10e9 },
        { state: 12, element: 2, gathered: 0 },
      );
      assert.equal(share, 0);
    },
  },
  {
    name: 'weights that live in host memory leave PCIe less time for state',
    run() {
      const rates = { host: 3e9, link: 35e9 };
      const crossing = { state: 12, element: 2 };
      const here = balancedShare(rates, { ...crossing, gathered: 0 });
      const gathered = balancedShare(rates, { ...crossing, gathered: 2 });
      // The threads take 8.75 bytes per parameter: 10 s + 2 + gathered = 8.75 (1 - s).
      assert.ok(Math.abs(here - 6.75 / 18.75) < 1e-9, `${here}`);
      assert.ok(Math.abs(gathered - 4.75 / 18.75) < 1e-9, `${gathered}`);
    },
  },
  {
    name: 'a rate counts the passes that end while all streams work',
    run() {
      assert.equal(passRate([1, 2, 6], 10), 0.5);
      assert.equal(passRate([1, 2, 6], 6), 0.5);
      assert.equal(passRate([1, 2, 6], 5), 1);
      // No pass has ended by then.
      assert.equal(passRate([5, 8], 4), 0.25);
    },
  },
  {
    name: 'rates are measured with concurrent copies and updates',
    run(device) {
      const { liveBuffers } = device.memory;
      const { host, link } = measureRates(device, { elements: 1000, passes: 3 });
      for (const rate of [host, link]) assert.ok(rate > 0 && Number.isFinite(rate), `${rate}`);
      assert.equal(device.memory.liveBuffers, liveBuffers);
    },
  },
];
