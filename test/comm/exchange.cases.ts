// Tests that the compressed exchange on 2, 3 and 4 ranks equals a simulation bit for bit and sends
// the bytes of its layout.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import type { ExchangeJob, ExchangeReport } from './exchange-process.js';
import { reportsOf, runRanks } from './ranks.js';

const on =
  (ranks: number) =>
  async ({ kind }: Device): Promise<void> => {
    const job: ExchangeJob = { kind };
    const reports = reportsOf<ExchangeReport>(await runRanks('exchange-process', ranks, { job }));
    for (const { failures, rounds, logged, formula } of reports) {
      assert.deepEqual(failures, []);
      assert.equal(rounds, 8);
      assert.equal(logged, formula);
    }
  };

export const cases: Case[] = [2, 3, 4].map((ranks) => ({
  name: `the exchange of ${ranks} ranks equals the simulation, error and all`,
  run: on(ranks),
  gpus: ranks,
}));
