// One rank of a job that trains with states in host memory between calls; it reports bits.
import { initDistributed } from '../../lib/comm/index.js';
import { type OffloadReport, type OffloadRun, trainOffloaded } from './offload-scenario.js';

async function main(): Promise<void> {
  const runs = JSON.parse(process.argv.at(-1) as string) as OffloadRun[];
  const job = await initDistributed({ device: 'cpu' });
  const reports: OffloadReport[] = [];
  for (const run of runs) reports.push(await trainOffloaded(run, job));
  await job.destroy();
  process.stdout.write(`${JSON.stringify(reports)}\n`);
}

void main();
