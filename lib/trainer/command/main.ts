// The program that the ranks of `ds train` run: arguments on the command line, its end as exit
// code.
import { DsError } from '../../errors.js';
import { checkArguments } from './check-arguments.js';
import { readArguments } from './read-arguments.js';

async function main(words: readonly string[]): Promise<void> {
  const { args } = await readArguments(words);
  const checked = checkArguments(args);
  const { train } = await import('./train.js');
  await train(checked);
}

main(process.argv.slice(2)).catch((error) => {
  // An error that is data is one line; anything else keeps its stack.
  console.error(error instanceof DsError ? `ds train: ${error.message}` : error);
  process.exit(1); // The job may still be open: see train().
});
