// The commands for folders with weights.
import { type Command, InvalidArgumentError, Option } from 'commander';

import { parseBytes } from './byte-size.js';
import type { ConsolidateFlags } from './consolidate.js';

type Finish = (run: () => Promise<number>) => Promise<void>;

const DTYPES = ['fp32', 'fp16', 'bf16'];
const FORMATS = ['hf', 'native'];

/**
 * Adds the commands under the heading `group`; `finish` ends the process with a code or the line of
 * an error.
 */
export function addModelCommands(program: Command, group: string, finish: Finish): void {
  program
    .command('consolidate')
    .helpGroup(group)
    .description('export a checkpoint as safetensors for transformers')
    .argument('<dir>', 'folder with checkpoints')
    .argument('<out>', 'folder to create')
    .option('--tag <tag>', 'checkpoint (default: the latest)')
    .addOption(
      new Option('--dtype <dtype>', 'dtype of the weights').choices(DTYPES).default('fp32'),
    )
    .addOption(
      new Option('--max-shard-size <size>', 'largest file, in bytes or as 500MB, 5GB, 2GiB')
        .argParser(byteCount)
        .default(5e9, '5GB'),
    )
    .addOption(
      new Option('--format <format>', 'names and layout (default: hf if possible)').choices(
        FORMATS,
      ),
    )
    .action((dir: string, out: string, options: ConsolidateFlags) =>
      finish(async () => {
        const { consolidateCommand } = await import('./consolidate.js');
        console.log(await consolidateCommand(dir, out, options));
        return 0;
      }),
    );
}

function byteCount(text: string): number {
  const bytes = parseBytes(text);
  if (bytes !== null) return bytes;
  throw new InvalidArgumentError('Expected bytes, such as 5GB, 500MB or 2GiB.');
}
