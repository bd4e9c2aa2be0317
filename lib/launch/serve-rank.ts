// The program that the ranks of `ds serve --tp N` run: the first one serves, the others compute
// with it.
import { DsError } from '../errors.js';
import { followEngine, leaveRanks } from '../serve/index.js';
import { engineOptions, type ServeFlags } from './engine-flags.js';
import { serveHere } from './serve.js';

async function main(folder: string, flags: ServeFlags): Promise<number> {
  if (process.env.RANK === '0') {
    const code = await serveHere(folder, flags);
    await leaveRanks();
    return code;
  }
  // Rank 0 gets the signals as well, and ends the job.
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => {});
  await followEngine(folder, engineOptions(flags));
  return 0;
}

const [folder = '', flags = '{}'] = process.argv.slice(2);
main(folder, JSON.parse(flags)).then(
  (code) => {
    process.exitCode = code;
  },
  (error) => {
    console.error(error instanceof DsError ? `ds serve: ${error.message}` : error);
    process.exitCode = 1;
  },
);
