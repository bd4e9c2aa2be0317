// One rank that runs the programs of a file in order and reports each result.
import { join } from 'node:path';
import type { Place, Program } from './program.js';

/** The one argument, as JSON. */
export interface ProgramsJob {
  /** A file below programs/, without extension. */
  file: string;
  device: 'cpu' | 'cuda';
  /** A folder that all ranks share. */
  folder: string;
}

/** Null if the program succeeded. */
export interface ProgramReport {
  name: string;
  error: string | null;
  value: unknown;
}

/** The programs of a file that run on this world size. */
function programsOf(file: string, worldSize: number): Program[] {
  const { programs } = require(join(__dirname, 'programs', file)) as { programs: Program[] };
  return programs.filter(({ ranks = [1, 2] }) => ranks.includes(worldSize));
}

async function main({ file, device, folder }: ProgramsJob): Promise<void> {
  const rank = Number(process.env.RANK ?? 0);
  const worldSize = Number(process.env.WORLD_SIZE ?? 1);
  const reports: ProgramReport[] = [];
  for (const [i, { name, run }] of programsOf(file, worldSize).entries()) {
    const place: Place = { rank, worldSize, device, folder: join(folder, `${i}`) };
    const report: ProgramReport = { name, error: null, value: null };
    reports.push(report);
    try {
      report.value = (await run(place)) ?? null;
    } catch (error) {
      report.error = (error as Error).stack ?? `${error}`;
      if (worldSize > 1) break; // After a failure the ranks are no longer in step.
    }
  }
  console.log(JSON.stringify(reports));
}

main(JSON.parse(process.argv[2] ?? '') as ProgramsJob).then(
  () => process.exit(),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
