// The program that the ranks of `ds train` run: reads arguments from the command line and sets the
// exit code.
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
  // Print a DsError as one line; other errors keep their stack.
  console.error(error instanceof DsError ? `ds train: ${error.message}` : error);
  process.exit(1); // The job may still be open: see train().
});
