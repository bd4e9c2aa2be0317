// Adds the commands for models of the hub: `ds pull` and `ds models`.
import type { Command } from 'commander';

import { addGroups, type RunToExitCode, readFlags } from './declared-flags.js';
import { MODELS, PULL, REMOVE } from './model-options.js';

/**
 * Adds the commands under the heading `group`. `finish` runs a command, prints its error as one
 * line, and ends the process.
 */
export function addHubCommands(program: Command, group: string, finish: RunToExitCode): void {
  addGroups(program.command('pull').helpGroup(group), PULL)
    .description('download a model from the Hugging Face hub into the cache')
    .argument('<name>', 'name of the model, such as Qwen/Qwen3-0.6B')
    .addHelpText('after', ENVIRONMENT)
    .action((name: string, flags: object) =>
      finish(async () => {
        const { pullCommand } = await import('./models.js');
        console.log(await pullCommand(name, readFlags(PULL, flags)));
        return 0;
      }),
    );
  const models = addGroups(program.command('models').helpGroup(group), MODELS)
    .description('list or remove the models of the cache')
    .action((flags: object) =>
      finish(async () => {
        const { modelsCommand } = await import('./models.js');
        console.log(await modelsCommand(readFlags(MODELS, flags)));
        return 0;
      }),
    );
  addGroups(models.command('remove'), REMOVE)
    .alias('rm')
    .description('remove a model, or one of its revisions')
    .argument('<name>', 'name of the model')
    .action((name: string, flags: object) =>
      finish(async () => {
        const { removeCommand } = await import('./models.js');
        console.log(await removeCommand(name, readFlags(REMOVE, flags)));
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
