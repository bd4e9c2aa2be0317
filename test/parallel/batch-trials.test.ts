// A rank that is given another batch than the ranks of its model ends the run, in whatever step.
// DS_BATCH_TRIALS sets the number of random trials of each size of job, DS_BATCH_SEED their seed.
import { reportsOf, runRanks } from '../comm/ranks.js';
import { faultOf, randomOf, type Trial, trialOf } from './batch-trials.js';
import type { TrialsJob } from './batch-trials-process.js';

const SEED = Number(process.env.DS_BATCH_SEED ?? 20_261_127);
const TRIALS = Number(process.env.DS_BATCH_TRIALS ?? 8);
/** Trials of one process. */
const ROUND = 8;

async function faultsOf(trials: Trial[], ranks: number): Promise<string[]> {
  const job: TrialsJob = { trials };
  const environment = { DEEPSPEED_TIMEOUT: '1' };
  const results = await runRanks('../parallel/batch-trials-process', ranks, { job, environment });
  const reports = reportsOf<string[]>(results);
  return trials.flatMap((trial, i) => {
    const localTexts = reports.map((report) => String(report[i]));
    const fault = faultOf(trial, localTexts);
    return fault ? [`${fault}: ${JSON.stringify(trial)}\n  ${localTexts.join('\n  ')}`] : [];
  });
}

test.each([2, 3, 4])(
  'on %i ranks, one batch that differs is named, and no other',
  async (ranks) => {
    const random = randomOf(SEED + ranks);
    const faults: string[] = [];
    for (let done = 0; done < TRIALS; done += ROUND) {
      const length = Math.min(ROUND, TRIALS - done);
      const trials = Array.from({ length }, () => trialOf(ranks, random));
      faults.push(...(await faultsOf(trials, ranks)));
    }
    expect([`seed ${SEED}`, ...faults]).toEqual([`seed ${SEED}`]);
  },
);
