// A process that runs one rank program after another, on request of its parent.
import { seed } from '../../lib/index.js';
import { END } from './rank-child.js';
import type { Turn } from './standing-ranks.js';

process.on('message', ({ program, environment, job }: Turn) => {
  for (const name of Object.keys(process.env)) if (!(name in environment)) delete process.env[name];
  Object.assign(process.env, environment);
  process.argv.splice(1, Number.POSITIVE_INFINITY, program, job);
  seed(0); // As in a new process.
  process.channel?.unref(); // So that the process would exit with the program.
  delete require.cache[program];
  require(program);
});

process.on('beforeExit', () => {
  process.channel?.ref();
  const code = process.exitCode ?? 0;
  process.exitCode = undefined;
  process.stderr.write(`${END}\n`);
  process.stdout.write(`${END}${code}\n`);
});
process.on('disconnect', () => process.exit());
