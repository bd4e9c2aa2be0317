// The commands for models of the hub: ds pull and ds models.
import type { Command } from 'commander';

import type { PullFlags } from './pull.js';

type Finish = (run: () => Promise<number>) => Promise<void>;

/**
 * Adds the commands under the heading `group`; `finish` ends the process with a code or the line of
 * an error.
 */
export function addHubCommands(program: Command, group: string, finish: Finish): void {
  program
    .command('pull')
    .helpGroup(group)
    .description('download a model of the Hugging Face hub into the cache')
    .argument('<name>', 'name of the model, such as Qwen/Qwen3-0.6B')
    .option('--revision <name>', 'branch, tag or commit', 'main')
    .option('--include <pattern...>', 'other files, such as "*.gguf"; never pickles')
    .option('--quiet', 'print no progress')
    .addHelpText('after', ENVIRONMENT)
    .action((name: string, flags: PullFlags) =>
      finish(async () => {
        console.log(await (await import('./pull.js')).pullCommand(name, flags));
        return 0;
      }),
    );
  const models = program
    .command('models')
    .helpGroup(group)
    .description('list or remove the models of the cache')
    .option('--json', 'print JSON')
    .action((flags: { json?: boolean }) =>
      finish(async () => {
        console.log(await (await import('./models.js')).modelsCommand(flags));
        return 0;
      }),
    );
  models
    .command('remove')
    .alias('rm')
    .description('remove a model, or one of its revisions')
    .argument('<name>', 'name of the model')
    .option('--revision <name>', 'branch, tag or commit (default: all)')
    .action((name: string, flags: { revision?: string }) =>
      finish(async () => {
        console.log(await (await import('./models.js')).removeCommand(name, flags));
        return 0;
      }),
    );
}

const ENVIRONMENT = `
Environment:
  HF_HUB_CACHE    folder of the cache (default: ~/.cache/huggingface/hub)
  HF_HOME         folder of cache and token (default: ~/.cache/huggingface)
  HF_TOKEN        token for private and gated models
  HF_ENDPOINT     URL of the hub (default: https://huggingface.co)
  HF_HUB_OFFLINE  1: use only the cache

An interrupted download continues where it stopped.`;
