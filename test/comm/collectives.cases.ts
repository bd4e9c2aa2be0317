// Tests every collective, dtype and size on 2, 3 and 4 ranks, against values computed from all
// inputs.
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import type { CollectiveJob } from './collective-process.js';
import { reportsOf, runRanks } from './ranks.js';

interface Report {
  checks: number;
  failures: string[];
}

async function everyCollective(device: Device, ranks: number): Promise<void> {
  const job: CollectiveJob = { kind: device.kind };
  const results = await runRanks('collective-process', ranks, { job });
  for (const [rank, { checks, failures }] of reportsOf<Report>(results).entries()) {
    if (failures.length) throw new Error(`rank ${rank}:\n${failures.slice(0, 5).join('\n')}`);
    if (checks < 400) throw new Error(`rank ${rank} made ${checks} checks only`);
  }
}

const onRanks: readonly Case[] = [2, 3, 4].map((ranks) => ({
  name: `every collective on ${ranks} ranks`,
  run: (device: Device) => everyCollective(device, ranks),
  gpus: ranks,
}));

export const cases: readonly Case[] = [...onRanks];
