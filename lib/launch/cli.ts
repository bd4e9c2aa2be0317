#!/usr/bin/env node
// The `ds` command: a subcommand by its name, or else the launcher of a script.
import { Argument, Command, InvalidArgumentError, Option } from 'commander';

import { DsError } from '../errors.js';
import { systemError } from '../runtime/system-error.js';
import { version } from '../version.js';
import { parseBytes } from './byte-size.js';
import type { Shell } from './completion/index.js';
import type { ElasticFlags } from './elastic.js';
import { addHubCommands } from './hub-commands.js';
import type { IoFlags } from './io.js';
import { type LaunchOptions, launchCommand } from './launch-options.js';
import { addModelCommands } from './model-commands.js';
import type { PlanFlags } from './plan.js';
import { requireNoCommand } from './script.js';
import { addServeCommands } from './serve-commands.js';
import { TEMPLATES, type Template, templatesHelp } from './templates.js';
import type { ValidateOptions } from './validate.js';
import { addWatchCommand } from './watch.js';

/** The options of `ds validate` as they are typed. */
type ValidateFlags = Omit<ValidateOptions, 'auto'> & { auto?: string };

function positiveInteger(text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value > 0) return value;
  throw new InvalidArgumentError('Expected a positive integer.');
}

function positiveNumber(text: string): number {
  const value = Number(text);
  if (value > 0 && Number.isFinite(value)) return value;
  throw new InvalidArgumentError('Expected a positive number.');
}

function byteCount(text: string): number {
  const bytes = parseBytes(text);
  if (bytes !== null) return bytes;
  throw new InvalidArgumentError('Expected bytes, such as 5GB, 500MB or 2GiB.');
}

/** Columns of the help where the output is no terminal. */
const HELP_WIDTH = 80;

const choice = (flags: string, text: string, values: readonly string[]): Option =>
  new Option(flags, text).choices(values);

const positiveIntegers = (text: string): number[] => text.split(',').map(positiveInteger);
const byteCounts = (text: string): number[] => text.split(',').map(byteCount);

/** Exit code for a wrong command line, as in most programs. */
const USAGE = 2;

/** Ends with `code`; an error that is data is one line, anything else keeps its stack. */
async function finish(run: () => Promise<number>): Promise<void> {
  try {
    process.exitCode = await run();
  } catch (error) {
    const known = error instanceof DsError ? error : systemError(error);
    if (!known) throw error;
    console.error(`ds: ${known.message}`);
    process.exitCode = USAGE;
  }
}

const TRAIN = 'train';

async function train(words: readonly string[], before: LaunchOptions | null): Promise<number> {
  const { trainCommand } = await import('./train.js');
  return trainCommand(words, before);
}

/** Ends the process after commander has printed. Commander's code for errors, 1, becomes USAGE. */
const ended = ({ exitCode }: { exitCode: number }): never => process.exit(exitCode && USAGE);

const program = new Command('ds')
  .description('Tools of @ds/native.')
  .version(version)
  .exitOverride(ended);

const [PROJECT, TRAINING, MODELS, INFERENCE, CONFIGURATION, MACHINE] = [
  'A new project:',
  'Training:',
  'Models:',
  'Inference:',
  'Configuration and memory:',
  'This machine:',
];

program
  .command('init')
  .helpGroup(PROJECT)
  .description('write a project that trains at once on a CPU')
  .argument('[dir]', 'folder that is new or empty', '.')
  .addOption(choice('--template <name>', 'kind of project', Object.keys(TEMPLATES)).default('chat'))
  .addHelpText('after', templatesHelp)
  .action((dir: string, { template }: { template: Template }) =>
    finish(async () => {
      console.log((await import('./init.js')).init(dir, template));
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

program
  .command('validate')
  .helpGroup(CONFIGURATION)
  .description('check a ds_config.json and print the resolved configuration')
  .argument('<file>', 'path of the ds_config.json')
  .optionsGroup('Environment:')
  .option('--world-size <n>', 'number of ranks', positiveInteger, 1)
  .option('--auto <name=value,...>', 'values for "auto": lr, perDeviceBatchSize, ...')
  .option('--strict', 'refuse unknown keys')
  .optionsGroup('Output:')
  .option('--explain', 'print the origin of each value')
  .option('--json', 'print JSON')
  .action((file: string, { auto, ...options }: ValidateFlags) =>
    finish(async () => {
      const [{ validate }, { parseAuto }] = await Promise.all([
        import('./validate.js'),
        import('./auto-option.js'),
      ]);
      const sources = auto === undefined ? undefined : parseAuto(auto);
      const { valid, output, messages, summary } = validate(file, { ...options, auto: sources });
      for (const message of messages) console.error(message);
      if (output) console.log(output);
      if (summary) console.error(summary);
      return valid ? 0 : 1;
    }),
  );

program
  .command('plan')
  .helpGroup(CONFIGURATION)
  .description('predict memory and step time by ZeRO stage and offload')
  .optionsGroup('Model and batch:')
  .requiredOption('--model <model>', 'GPT-2 size such as 1558M, folder, or name of the hub')
  .option('--revision <name>', 'branch, tag or commit of a model of the hub')
  .option('--batch <n>', 'samples of a step on each GPU', positiveInteger, 1)
  .option(
    '--seq <n>',
    "tokens of a sample (default: 1024, or the model's maximum)",
    positiveInteger,
  )
  .addOption(
    choice('--precision <p>', 'dtype of weights', ['bf16', 'fp16', 'fp32']).default('bf16'),
  )
  .option('--bf16-optimizer-states', "AdamW's moments in bf16: 4 bytes a parameter less, not exact")
  .optionsGroup('Machines:')
  .option(
    '--gpu <name>',
    'such as h100, a100-80g, rtx4090; a wrong name lists all (default: the GPU here)',
  )
  .option('--gpu-memory <size>', 'memory of each GPU (default: of that GPU)', byteCount)
  .option('--host-memory <size>', 'memory of each machine (default: this machine)', byteCount)
  .option('--gpus <n>', 'GPUs of each machine', positiveInteger, 1)
  .option('--nodes <n>', 'machines', positiveInteger, 1)
  .option('--cores <n>', 'cores of each machine (default: this machine)', positiveInteger)
  .option('--link <GB/s>', 'rate between machines', positiveNumber, 50)
  .option('--nvme-space <size>', 'disk space of each machine (default: no disk)', byteCount)
  .option(
    '--nvme-rate <GB/s>',
    'rate of reads and writes at once; ds io measures it',
    positiveNumber,
    2,
  )
  .optionsGroup('Parallelism and adapters:')
  .option('--tp <n>', 'largest number of tensor-parallel ranks', positiveInteger, 1)
  .option('--pp <n>', 'largest number of pipeline stages', positiveInteger, 1)
  .option('--lora [r]', 'train adapters of rank r (default: 8)', positiveInteger)
  .option('--qlora [r]', 'the same on linear layers in 4 bits', positiveInteger)
  .option('--lora-targets <names>', 'layers with adapters, or all-linear (default: as PEFT)')
  .optionsGroup('One configuration:')
  .addOption(
    new Option('--config <file>', 'predict this ds_config.json, choose nothing').conflicts([
      ...['batch', 'precision', 'bf16OptimizerStates', 'tp', 'pp'],
    ]),
  )
  .option('--checkpointing', 'with --config: the model recomputes activations')
  .optionsGroup('Output:')
  .option('--json', 'print all combinations as JSON')
  .action((flags: PlanFlags) =>
    finish(async () => {
      const { fits, output } = await (await import('./plan.js')).planCommand(flags);
      console.log(output);
      return fits ? 0 : 1;
    }),
  );

program
  .command('elastic')
  .helpGroup(CONFIGURATION)
  .description('print the batch sizes that "elasticity" of a ds_config.json allows')
  .argument('[file]', 'path of the ds_config.json')
  .option('-c, --config <file>', 'the same path, as in ds_elastic')
  .option('-w, --world-size <n>', 'number of data-parallel ranks', positiveInteger)
  .option('--json', 'print JSON')
  .action((file: string | undefined, { config, ...flags }: ElasticFlags & { config?: string }) =>
    finish(async () => {
      const named = file ?? config;
      if (named === undefined) {
        const expected = 'the path of a ds_config.json';
        throw new DsError({ code: 'DS_ARGUMENT', op: 'elastic', expected, got: 'none' });
      }
      console.log((await import('./elastic.js')).elastic(named, flags));
      return 0;
    }),
  );

program
  .command('env')
  .helpGroup(MACHINE)
  .description('print devices, libraries and missing parts of this machine')
  .option('--json', 'print JSON')
  .option('--forget-products', 'remove the timed algorithms of matrix products')
  .action(async ({ json, forgetProducts }: { json?: boolean; forgetProducts?: boolean }) => {
    const { forgetProducts: forget, formatSystem, inspectSystem } = await import('./env.js');
    if (forgetProducts) {
      console.log(forget());
      return;
    }
    const report = await inspectSystem();
    console.log(json ? JSON.stringify(report, null, 2) : formatSystem(report));
    if (!report.native) process.exitCode = 1;
  });

program
  .command('io')
  .helpGroup(MACHINE)
  .description('measure a disk for optimizer state, print the fastest "aio" section')
  .argument('<path>', 'folder on the disk')
  .optionsGroup('Measurement:')
  .addOption(
    new Option('--size <size>', 'size of the test file, in bytes or as 500MB, 2GiB')
      .argParser(byteCount)
      .default(2 ** 30, '1GiB'),
  )
  .option('--block_size <list>', 'bytes of a request (default: 1, 4 and 16 MiB)', byteCounts)
  .addOption(
    new Option('--queue_depth <list>', 'requests at once')
      .argParser(positiveIntegers)
      .default([8, 32], '8,32'),
  )
  .addOption(
    new Option('--threads <list>', 'threads for checksums')
      .argParser(positiveIntegers)
      .default([1, 2, 4], '1,2,4'),
  )
  .optionsGroup('Output:')
  .option('--parameters <n>', 'also print the cost of a step of such a model', positiveInteger)
  .action((path: string, flags: IoFlags) =>
    finish(async () => {
      const { ioCommand } = await import('./io.js');
      console.log(ioCommand(path, flags, (line) => console.error(line)));
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
  .exitOverride(ended);
launcher.description(`${launcher.description()}\n${commandsHelp()}`);

/** The commands by group, each with `ds` before its name. */
function commandsHelp(): string {
  const help = program.createHelp();
  help.helpWidth = process.stdout.columns ?? HELP_WIDTH;
  const shown = help.visibleCommands(program).filter((one) => one.name() !== 'help');
  const width = Math.max(...shown.map((one) => `ds ${one.name()}`.length));
  const groups = help.groupItems(shown, shown, (one) => one.helpGroup());
  const blocks = [...groups].map(([heading, list]) => {
    const lines = list.map((one) =>
      help.formatItem(`ds ${one.name()}`, width, one.description(), help),
    );
    return [heading, ...lines].join('\n');
  });
  return `\n${[...blocks, 'ds COMMAND --help prints the options of a command.'].join('\n\n')}`;
}

// "ds help plan" is "ds plan --help".
const [first, ...words] = process.argv.slice(2);
if (first === 'help') process.argv.splice(2, words.length + 1, ...words, '--help');

if (process.argv.length === 2) launcher.help({ error: true });
const named = commands.includes(process.argv[2] ?? '');
(named ? program : launcher).parseAsync();
