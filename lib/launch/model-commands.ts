// Adds the commands for folders of weights: `ds eval`, `merge`, `export` and `consolidate`.
import type { Command } from 'commander';

import { addGroups, type RunToExitCode, readFlags } from './declared-flags.js';
import { CONSOLIDATE, EVAL, EXPORT, MERGE } from './model-options.js';

/**
 * Adds the commands under the heading `group`. `finish` runs a command, prints its error as one
 * line, and ends the process.
 */
export function addModelCommands(program: Command, group: string, finish: RunToExitCode): void {
  const print = (text: () => Promise<string>): Promise<void> =>
    finish(async () => {
      console.log(await text());
      return 0;
    });
  addGroups(program.command('eval').helpGroup(group), EVAL)
    .description('compute loss, perplexity and multiple-choice accuracy of a model')
    .argument('<model>', 'folder of a model, checkpoints or an adapter; name on the hub')
    .action((folder: string, flags: object) =>
      print(async () => {
        const { evalCommand } = await import('./eval.js');
        return evalCommand(folder, readFlags(EVAL, flags), showProgress);
      }),
    );
  addGroups(program.command('merge').helpGroup(group), MERGE)
    .description('merge an adapter into its base model')
    .argument('<model>', 'folder of the base model, or name on the hub')
    .argument('<adapter>', 'folder of the adapter, or name on the hub')
    .action((folder: string, adapter: string, flags: object) =>
      print(async () => {
        const { mergeCommand } = await import('./export.js');
        return mergeCommand(folder, adapter, readFlags(MERGE, flags));
      }),
    );
  addGroups(program.command('export').helpGroup(group), EXPORT)
    .description('export a run or a checkpoint as a Hugging Face model folder')
    .argument('<folder>', 'run of ds train, folder of checkpoints, or model')
    .action((folder: string, flags: object) =>
      print(async () => {
        const { exportCommand } = await import('./export.js');
        return exportCommand(folder, readFlags(EXPORT, flags));
      }),
    );
  // The older spelling of `ds export` for folders of checkpoints.
  addGroups(program.command('consolidate', { hidden: true }), CONSOLIDATE)
    .description('export a checkpoint; the same as ds export <dir> --output <out>')
    .argument('<dir>', 'folder with checkpoints')
    .argument('<out>', 'folder to create')
    .action((dir: string, out: string, flags: object) =>
      print(async () => {
        const { consolidateCommand } = await import('./export.js');
        return consolidateCommand(dir, out, readFlags(CONSOLIDATE, flags));
      }),
    );
}

/** Rewrites one line of the terminal; null clears the line. */
function showProgress(line: string | null): void {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${line ?? ''}`);
}
