// One rank of `ds train` that no launcher watches; it reports the error that it ends with.
import { initDistributed } from '../../lib/comm/index.js';
import { checkArguments } from '../../lib/trainer/command/check-arguments.js';
import { readArguments } from '../../lib/trainer/command/read-arguments.js';
import { train } from '../../lib/trainer/command/train.js';
import { gate } from '../comm/gate.js';

/** Joins the job and is done with it. */
async function joinAlone(): Promise<null> {
  const job = await initDistributed({ device: 'cpu' });
  await job.destroy();
  return null;
}

async function main(words: readonly string[]): Promise<string | null> {
  await gate();
  if (process.env.RANK === process.env.DS_TEST_ABSENT) return joinAlone();
  const { args } = await readArguments(words);
  return train(checkArguments(args)).then(
    () => null,
    (error: Error) => error.message,
  );
}

void main(JSON.parse(process.argv.at(-1) as string) as string[]).then((message) => {
  process.stdout.write(`${JSON.stringify(message)}\n`);
});
