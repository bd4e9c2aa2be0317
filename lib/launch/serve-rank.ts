// The program of the ranks of `ds serve --tp N`: rank 0 serves; the other ranks compute with it.
import { DsError } from '../errors.js';
import { followEngine, leaveRanks } from '../serve/index.js';
import { readEngineOptions, type ServeFlags } from './engine-flags.js';
import { serveInProcess } from './serve.js';

async function runRank(folder: string, flags: ServeFlags): Promise<number> {
  if (process.env.RANK === '0') {
    const code = await serveInProcess(folder, flags);
    await leaveRanks();
    return code;
  }
  // Rank 0 receives the signals as well, and ends the job.
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => {});
  await followEngine(folder, readEngineOptions(flags));
  return 0;
}

const [folder = '', flags = '{}'] = process.argv.slice(2);
runRank(folder, JSON.parse(flags)).then(
  (code) => {
    process.exitCode = code;
  },
  (error) => {
    console.error(error instanceof DsError ? `ds serve: ${error.message}` : error);
    process.exitCode = 1;
  },
);
