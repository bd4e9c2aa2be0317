// The program that each rank of `ds train` runs. It reads the arguments, trains, and sets the exit
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
  // A DsError is printed without its stack, because the user can correct it.
  console.error(error instanceof DsError ? `ds train: ${error.message}` : error);
  process.exit(1); // The job may still be open; see train().
});
