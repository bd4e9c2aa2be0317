// Tests initDistributed: options, the environment, a world of one, and failures at the start.
import { createServer } from 'node:net';
import { distributed, initDistributed } from '../../lib/comm/index.js';
import { Tensor } from '../../lib/index.js';
import { reportsOf, runRanks } from './ranks.js';

afterEach(async () => distributed()?.destroy());

test('a world of one rank opens no connections, and collectives copy', async () => {
  const job = await initDistributed({ device: 'cpu' });
  expect([job.rank, job.worldSize, job.store]).toEqual([0, 1, null]);
  const tensor = Tensor.from([1, 2, 3]);
  const output = Tensor.from([0, 0, 0]);
  job.world.allReduce(tensor, { op: 'avg' }).wait();
  job.world.allGather(output, tensor).wait();
  expect(output.toArray()).toEqual([1, 2, 3]);
  job.world.barrier().synchronize();
  expect((await job.newGroup([0]))?.size).toBe(1);
  await expect(job.newGroup([1])).rejects.toMatchObject({ code: 'DS_ARGUMENT' });
});

test.each([
  [{ worldSize: 2, rank: 2, secret: 'x' }, 'initDistributed rank'],
  [{ worldSize: 0 }, 'initDistributed worldSize'],
  [{ worldSize: 2, rank: 0, masterPort: 70000, secret: 'x' }, 'initDistributed masterPort'],
  [{ worldSize: 1, timeout: -1 }, 'initDistributed timeout'],
  [{ worldSize: 2, rank: 0 }, 'initDistributed'],
  [{ worldSize: 1, mesh: { tp: 2 } }, 'initDistributed mesh'],
  [{ worldSize: 1, mesh: { tp: 0 } }, 'initDistributed mesh.tp'],
])('options %j are refused', async (options, op) => {
  await expect(initDistributed({ device: 'cpu', ...options })).rejects.toMatchObject({
    code: 'DS_ARGUMENT',
    op,
  });
});

test('an unknown option is refused, also for a joined job', async () => {
  const wrong = () => initDistributed({ worldSiz: 1 } as object);
  const refusal = {
    code: 'DS_ARGUMENT',
    message: expect.stringMatching(/^initDistributed: .*"worldSiz".*Did you mean "worldSize"/),
  };
  await expect(wrong()).rejects.toMatchObject(refusal);
  await initDistributed({ device: 'cpu' });
  await expect(wrong()).rejects.toMatchObject(refusal);
});

test('a rank with another secret is refused, and the others name the missing rank', async () => {
  // The second job must meet the first one's store within this time.
  const job = [{ timeout: 0.2 }, { secret: 'another' }];
  const [first, second] = reportsOf<{ message: string }>(
    await runRanks('init-process', 2, { job }),
  );
  expect(second?.message).toContain('the same job secret');
  expect(first?.message).toMatch(/did not open it in time|did not connect in time|rank/);
});

test('the error of a used master port names the port', async () => {
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  const { port } = other.address() as { port: number };
  const job = [{ masterPort: port }];
  const [report] = reportsOf<{ code: string; message: string }>(
    await runRanks('init-process', 1, { job, environment: { WORLD_SIZE: '2' } }),
  );
  other.close();
  expect(report).toMatchObject({ code: 'DS_COMM' });
  expect(report?.message).toMatch(/Address already in use.*MASTER_PORT/);
});

test('a second initDistributed() returns the same job', async () => {
  const reports = reportsOf(await runRanks('init-process', 2, { job: [] }));
  const report = { size: 2, same: true, mesh: 'dp 2' };
  expect(reports).toEqual([0, 1].map((rank) => ({ rank, ...report })));
});

test('every rank has the mesh of the first initDistributed()', async () => {
  const tp2 = { mesh: { tp: 2 } };
  const reports = reportsOf(await runRanks('init-process', 2, { job: [tp2, tp2] }));
  const reported = expect.stringMatching(
    /^initDistributed mesh: expected tp 2, the mesh of the joined job, got dp 2\. Pass the mesh to the first/,
  );
  const report = { size: 2, same: true, mesh: 'tp 2', reported };
  expect(reports).toEqual([0, 1].map((rank) => ({ rank, ...report })));
});

test.each([0, 1])(
  'an invalid mesh on rank %i is an error on the other rank at once',
  async (odd) => {
    const meshes = [2, 2].map((tp, rank) => ({ mesh: { tp: rank === odd ? 3 : tp } }));
    const reports = reportsOf<{ message: string }>(
      await runRanks('init-process', 2, { job: meshes }),
    );
    expect(reports[odd]).toMatchObject({ code: 'DS_ARGUMENT', op: 'initDistributed mesh' });
    expect(reports[odd]?.message).toMatch(/divides 2, the number of ranks, got tp 3 = 3/);
    const has = ['tp 2', 'tp 2'];
    has[odd] = 'tp 3 (invalid for 2 ranks)';
    expect(reports[1 - odd]).toMatchObject({
      code: 'DS_ARGUMENT',
      message: expect.stringContaining(
        `every rank: ${has[0]} as on rank 0, got ${has[1]} on rank 1`,
      ),
    });
  },
);

test('a different mesh on one rank fails on every rank', async () => {
  const job = [{ mesh: { tp: 2 } }, {}];
  const reports = reportsOf<{ message: string }>(await runRanks('init-process', 2, { job }));
  for (const report of reports) {
    expect(report).toMatchObject({ code: 'DS_ARGUMENT', op: 'initDistributed mesh' });
    expect(report.message).toMatch(
      /every rank: tp 2 as on rank 0, got dp 2 on rank 1\. Pass the same/,
    );
  }
});
