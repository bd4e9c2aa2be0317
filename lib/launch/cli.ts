#!/usr/bin/env node
// The `ds` command: runs a subcommand by its name, or launches a script.
import { Argument, Command } from 'commander';

import { DsError } from '../errors.js';
import { systemError } from '../runtime/system-error.js';
import { version } from '../version.js';
import type { Shell } from './completion/index.js';
import { addGroups, readFlags } from './declared-flags.js';
import { addHubCommands } from './hub-commands.js';
import { type LaunchOptions, launchCommand } from './launch-options.js';
import { addModelCommands } from './model-commands.js';
import { PLAN } from './plan-options.js';
import { requireNoCommand } from './script.js';
import { addServeCommands } from './serve-commands.js';
import { formatTemplates } from './templates.js';
import { ELASTIC, ENV, INIT, IO, VALIDATE } from './tool-options.js';
import { addWatchCommand } from './watch.js';

/** Width of the help in columns if the output is not a terminal. */
const HELP_WIDTH = 80;

/** Exit code for a wrong command line, as in most programs. */
const USAGE_ERROR = 2;

/**
 * Ends with the exit code of `command`. Prints a DsError as one line; other errors keep their
 * stack.
 */
async function finish(command: () => Promise<number>): Promise<void> {
  try {
    process.exitCode = await command();
  } catch (error) {
    const dsError = error instanceof DsError ? error : systemError(error);
    if (!dsError) throw error;
    console.error(`ds: ${dsError.message}`);
    process.exitCode = USAGE_ERROR;
  }
}

const TRAIN = 'train';

async function train(words: readonly string[], defaults: LaunchOptions | null): Promise<number> {
  const { trainCommand } = await import('./train.js');
  return trainCommand(words, defaults);
}

/**
 * Ends the process after commander has printed. Replaces commander's error code 1 by USAGE_ERROR.
 */
const exitProcess = ({ exitCode }: { exitCode: number }): never =>
  process.exit(exitCode && USAGE_ERROR);

const program = new Command('ds')
  .description('Tools of @ds/native.')
  .version(version)
  .exitOverride(exitProcess);

const [PROJECT, TRAINING, MODELS, INFERENCE, CONFIGURATION, MACHINE] = [
  'A new project:',
  'Training:',
  'Models:',
  'Inference:',
  'Configuration and memory:',
  'This machine:',
];

addGroups(program.command('init'), INIT)
  .helpGroup(PROJECT)
  .description('write a project that trains at once on a CPU')
  .argument('[dir]', 'folder that is new or empty', '.')
  .addHelpText('after', formatTemplates)
  .action((dir: string, flags: object) =>
    finish(async () => {
      console.log((await import('./init.js')).createProject(dir, readFlags(INIT, flags).template));
      return 0;
    }),
  );

program
  .command(TRAIN)
  .helpGroup(TRAINING)
  .description('train or fine-tune a model on files of rows')
  .allowUnknownOption()
  .allowExcessArguments()
  .helpOption(false)
  .action(() => finish(() => train(process.argv.slice(3), null)));

addHubCommands(program, MODELS, finish);
addModelCommands(program, MODELS, finish);
addWatchCommand(program, TRAINING, finish);
addServeCommands(program, INFERENCE, finish);

addGroups(program.command('validate'), VALIDATE)
  .helpGroup(CONFIGURATION)
  .description('check a ds_config.json, print all values and their sources')
  .argument('<file>', 'path of the ds_config.json')
  .action((file: string, flags: object) =>
    finish(async () => {
      const [{ validateFile: validate }, { parseAuto }] = await Promise.all([
        import('./validate.js'),
        import('./auto-option.js'),
      ]);
      const { auto, ...options } = readFlags(VALIDATE, flags);
      const sources = auto === undefined ? undefined : parseAuto(auto);
      const { valid, output, messages, summary } = validate(file, { ...options, auto: sources });
      for (const message of messages) console.error(message);
      if (output) console.log(output);
      if (summary) console.error(summary);
      return valid ? 0 : 1;
    }),
  );

addGroups(program.command('plan'), PLAN)
  .helpGroup(CONFIGURATION)
  .description('predict memory and step time, and write a ds_config.json')
  .addHelpText(
    'after',
    `
Examples:
  ds plan --model Qwen/Qwen3-0.6B
  ds plan --model 1558M --gpu rtx4090 --batch 8
  ds plan --model llama --gpus 4 --config ds_config.json

docs/planning.md explains the output.`,
  )
  .action((flags: object) =>
    finish(async () => {
      const { fits, output } = await (await import('./plan.js')).planCommand(
        readFlags(PLAN, flags),
      );
      console.log(output);
      return fits ? 0 : 1;
    }),
  );

addGroups(program.command('elastic'), ELASTIC)
  .helpGroup(CONFIGURATION)
  .description('print the batch sizes that "elasticity" of a ds_config.json allows')
  .argument('[file]', 'path of the ds_config.json')
  .action((file: string | undefined, given: object) =>
    finish(async () => {
      const { config, ...flags } = readFlags(ELASTIC, given);
      const named = file ?? config;
      if (named === undefined) {
        const expected = 'the path of a ds_config.json';
        throw new DsError({ code: 'DS_ARGUMENT', op: 'elastic', expected, got: 'none' });
      }
      console.log((await import('./elastic.js')).describeElasticity(named, flags));
      return 0;
    }),
  );

addGroups(program.command('env'), ENV)
  .helpGroup(MACHINE)
  .description('print the devices and libraries of this machine, and missing ones')
  .action(async (flags: object) => {
    const { json, forgetProducts } = readFlags(ENV, flags);
    const { forgetProducts: forget, formatSystem, inspectSystem } = await import('./env.js');
    if (forgetProducts) {
      console.log(forget());
      return;
    }
    const report = await inspectSystem();
    console.log(json ? JSON.stringify(report, null, 2) : formatSystem(report));
    if (!report.native) process.exitCode = 1;
  });

addGroups(program.command('io'), IO)
  .helpGroup(MACHINE)
  .description('measure a disk for offload and print the fastest "aio" section')
  .argument('<path>', 'folder on the disk')
  .action((path: string, flags: object) =>
    finish(async () => {
      const { ioCommand } = await import('./io.js');
      console.log(ioCommand(path, readFlags(IO, flags), (line) => console.error(line)));
      return 0;
    }),
  );

program
  .command('completion')
  .helpGroup(MACHINE)
  .description('print a script that completes commands and options in a shell')
  .addArgument(new Argument('<shell>', 'shell of the script').choices(['bash', 'zsh', 'fish']))
  .action((shell: Shell) =>
    finish(async () => {
      const { completionScript } = await import('./completion/index.js');
      console.log(completionScript(shell, program, launcher));
      return 0;
    }),
  );

program
  .command('launch-node', { hidden: true })
  .description('the ranks of one node; the launcher starts it through ssh')
  .argument('<node>', 'number of the node', Number)
  .action((node: number) =>
    finish(async () => (await import('./launch-node.js')).launchNode(node)),
  );

const commands = program.commands.map((command) => command.name());
const launcher = launchCommand((options, script, args) =>
  finish(async () => {
    if (script === TRAIN && !options.module) return train(args, options);
    if (!options.module) requireNoCommand(script, commands);
    const start = { name: script, args };
    if (options.autotuning) {
      return (await import('./autotune.js')).autotuneCommand(options, start);
    }
    return (await import('./launch.js')).launch(options, start);
  }),
)
  .usage('COMMAND [options]\n       ds [options] <script> [arguments]')
  .version(version)
  .exitOverride(exitProcess);
launcher.description(`${launcher.description()}\n${formatCommands()}`).addHelpText(
  'after',
  `
Examples:
  ds train --model Qwen/Qwen3-0.6B --data chats.jsonl --output tuned --lora
  ds serve tuned
  ds --num_gpus 2 train.mjs
  ds --hostfile hosts train.mjs --epochs 3`,
);

/** Formats the commands by group, each with `ds` before its name. */
function formatCommands(): string {
  const help = program.createHelp();
  help.helpWidth = process.stdout.columns ?? HELP_WIDTH;
  const shown = help.visibleCommands(program).filter((command) => command.name() !== 'help');
  const width = Math.max(...shown.map((command) => `ds ${command.name()}`.length));
  const groups = help.groupItems(shown, shown, (command) => command.helpGroup());
  const blocks = [...groups].map(([heading, list]) => {
    const lines = list.map((command) =>
      help.formatItem(`ds ${command.name()}`, width, command.description(), help),
    );
    return [heading, ...lines].join('\n');
  });
  return `\n${[...blocks, 'ds COMMAND --help prints the options of a command.'].join('\n\n')}`;
}

// "ds help plan" means "ds plan --help".
const [first, ...words] = process.argv.slice(2);
if (first === 'help') process.argv.splice(2, words.length + 1, ...words, '--help');

if (process.argv.length === 2) launcher.help({ error: true });
const named = commands.includes(process.argv[2] ?? '');
(named ? program : launcher).parseAsync();
