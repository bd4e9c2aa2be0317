// One rank that joins a job with the given options and prints how that ended.
import { type InitOptions, initDistributed } from '../../lib/comm/index.js';
import type { DsError } from '../../lib/errors.js';
import { gate } from './gate.js';

async function main(options: InitOptions[]): Promise<void> {
  const localInitOptions = options[Number(process.env.RANK)] ?? {};
  await gate();
  try {
    const first = initDistributed({ device: 'cpu', timeout: 0.5, ...localInitOptions });
    const [job, meanwhile] = await Promise.all([first, initDistributed()]);
    const same = meanwhile === job && (await initDistributed()) === job;
    const flat = { mesh: { dp: job.worldSize } };
    const reported = await initDistributed(flat).then(String, ({ message }: DsError) => message);
    const report = { rank: job.rank, size: job.worldSize, same, mesh: String(job.mesh.shape) };
    console.log(
      JSON.stringify(job.mesh.size('dp') === job.worldSize ? report : { ...report, reported }),
    );
    await job.destroy();
  } catch (error) {
    const { code, op, message } = error as DsError;
    console.log(JSON.stringify({ code, op, message }));
  }
}

void main(JSON.parse(process.argv[2] ?? '[]') as InitOptions[]);
