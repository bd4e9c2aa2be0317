// Tests that ranks which do not join a save or load get an error in their next collective, long
// before the timeout. Late ranks continue normally.
import type { MeshOptions } from '../../lib/comm/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { AloneJob, AloneReport } from './alone-process.js';

async function run(job: AloneJob, count: number): Promise<AloneReport[]> {
  return reportsOf(await runRanks('../engine/alone-process', count, { job }));
}

const MESHES: [mesh: MeshOptions, stage: 0 | 2 | 3, ranks: number][] = [
  [{}, 0, 2],
  [{}, 2, 2],
  [{}, 3, 2],
  [{ tp: 2 }, 0, 2],
  [{ sp: 2 }, 3, 2],
  [{ pp: 2 }, 0, 2],
  [{ tp: 2 }, 2, 4],
];

/** Without this error, the job would wait for 600 s. */
test.each(MESHES)('a save on rank 0 only: %j, stage %i, %i ranks', async (mesh, stage, count) => {
  const alone: AloneJob = { mesh, stage, call: 'saveCheckpoint', ranks: [0], lateMs: null };
  for (const { error: said } of await run(alone, count)) {
    expect(said).toMatch(/^DS_COMM .*rank 0 waits in saveCheckpoint\(\) for ranks? 1/);
    expect(said).toMatch(/saveCheckpoint\(\) must be called on all ranks/);
  }
});

test.each([
  ['loadCheckpoint', [1]],
  ['save16bitModel', [0]],
] as const)('%s of ranks %j alone', async (call, ranks) => {
  const alone: AloneJob = { mesh: {}, stage: 2, call, ranks: [...ranks], lateMs: null };
  for (const { error: said } of await run(alone, 2)) {
    expect(said).toMatch(new RegExp(`^DS_COMM .*rank ${ranks[0]} waits in ${call}\\(\\) for rank`));
  }
});

test.each([
  [{}, 3],
  [{ pp: 2 }, 0],
] as const)('a save waits for a late rank: %j, stage %i', async (mesh, stage) => {
  const late: AloneJob = { mesh, stage, call: 'saveCheckpoint', ranks: [0], lateMs: 5000 };
  const found = await run(late, 2);
  const prompt = await run({ ...late, lateMs: 0 }, 2);
  for (const { error: said, steps } of [...found, ...prompt])
    expect([said, steps]).toEqual(['', 4]);
  expect(found.map(({ weights }) => weights)).toEqual(prompt.map(({ weights }) => weights));
});
