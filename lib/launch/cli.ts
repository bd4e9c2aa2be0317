#!/usr/bin/env node
// The `ds` command: a subcommand by its name, or else the launcher of a script.
import { Command, InvalidArgumentError, Option } from 'commander';

import { DsError } from '../errors.js';
import { version } from '../version.js';
import { parseBytes } from './byte-size.js';
import type { ConsolidateFlags } from './consolidate.js';
import type { ElasticFlags } from './elastic.js';
import type { IoFlags } from './io.js';
import { type LaunchOptions, launchCommand } from './launch-options.js';
import type { PlanFlags } from './plan.js';
import { requireNoCommand } from './script.js';
import { addServeCommands } from './serve-commands.js';
import type { ValidateOptions } from './validate.js';

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

const EXPORT_DTYPES = ['fp32', 'fp16', 'bf16'];
const EXPORT_FORMATS = ['hf', 'native'];

function byteCount(text: string): number {
  const bytes = parseBytes(text);
  if (bytes !== null) return bytes;
  throw new InvalidArgumentError('Expected bytes, such as 5GB, 500MB or 2GiB.');
}

const positiveIntegers = (text: string): number[] => text.split(',').map(positiveInteger);
const byteCounts = (text: string): number[] => text.split(',').map(byteCount);

/** Exit code for what a command line gets wrong, as of most programs. */
const USAGE = 2;

/** Ends with `code`; an error that is data is one line, anything else keeps its stack. */
async function finish(run: () => Promise<number>): Promise<void> {
  try {
    process.exitCode = await run();
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    console.error(`ds: ${error.message}`);
    process.exitCode = USAGE;
  }
}

const TRAIN = 'train';

async function train(words: readonly string[], before: LaunchOptions | null): Promise<number> {
  const { trainCommand } = await import('./train.js');
  return trainCommand(words, before);
}

/** Ends what commander ends, which knows no other code than 1 for what is wrong. */
const ended = ({ exitCode }: { exitCode: number }): never => process.exit(exitCode && USAGE);

const program = new Command('ds')
  .description('Tools of @ds/native.')
  .version(version)
  .exitOverride(ended);

program
  .command('env')
  .description('print what was found on this machine and what is missing')
  .option('--json', 'as JSON')
  .action(async ({ json }: { json?: boolean }) => {
    const { formatSystem, inspectSystem } = await import('./env.js');
    const report = await inspectSystem();
    console.log(json ? JSON.stringify(report, null, 2) : formatSystem(report));
    if (!report.native) process.exitCode = 1;
  });

program
  .command('validate')
  .description('check a ds_config.json and print what it resolves to')
  .argument('<file>')
  .option('--world-size <n>', 'ranks that train together', positiveInteger, 1)
  .option('--auto <name=value,...>', 'what fills "auto": lr, perDeviceBatchSize, ...; rest: listed')
  .option('--explain', 'print where each value came from')
  .option('--strict', 'take unknown keys as errors')
  .option('--json', 'as JSON')
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
  .command('elastic')
  .description(
    'print the batch that "elasticity" of a ds_config.json chooses, and for how many ranks',
  )
  .argument('[file]')
  .option('-c, --config <file>', 'the same file, as ds_elastic has it')
  .option('-w, --world-size <n>', 'data ranks whose batch sizes are printed', positiveInteger)
  .option('--json', 'as JSON')
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
  .command('plan')
  .description('say what training a model needs, by stage and offload, and which way is fastest')
  .requiredOption(
    '--model <name>',
    'a size of GPT-2, such as 1558M, or a folder with a config.json',
  )
  .option('--batch <n>', 'samples of a step on each GPU', positiveInteger, 1)
  .option(
    '--seq <n>',
    'tokens of a sample; default: 1024, or what the model takes',
    positiveInteger,
  )
  .option('--gpu-memory <size>', 'of each: 80GiB, 24GB', byteCount, 139 * 2 ** 30)
  .option('--host-memory <size>', "of each machine; default: this one's", byteCount)
  .option('--gpus <n>', 'of each machine', positiveInteger, 1)
  .option('--nodes <n>', 'machines', positiveInteger, 1)
  .option('--cores <n>', "of each machine; default: this one's", positiveInteger)
  .option('--link <GB/s>', 'from each machine to the others', positiveNumber, 50)
  .option('--nvme-space <size>', 'of the disk of each machine; default: none is used', byteCount)
  .option('--nvme-rate <GB/s>', 'read, and written at once: see ds io', positiveNumber, 2)
  .option('--tp <n>', 'at most so many ranks share each layer', positiveInteger, 1)
  .option('--pp <n>', 'at most so many stages of a pipeline', positiveInteger, 1)
  .addOption(new Option('--precision <p>').choices(['bf16', 'fp16', 'fp32']).default('bf16'))
  .option('--bf16-optimizer-states', "AdamW's moments in bf16: 4 bytes a parameter less, not exact")
  .option('--lora [r]', 'train adapters of this rank; default 8', positiveInteger)
  .option('--qlora [r]', 'the same over linear layers in 4 bits', positiveInteger)
  .option('--lora-targets <names>', 'layers with adapters, or all-linear; default: as PEFT')
  .addOption(
    new Option(
      '--config <file>',
      'a ds_config.json: say what it needs and takes, and choose none',
    ).conflicts(['batch', 'precision', 'bf16OptimizerStates', 'tp', 'pp']),
  )
  .option('--checkpointing', 'with --config: the model has activationCheckpointing: true')
  .option('--json', 'all ways, as JSON')
  .action((flags: PlanFlags) =>
    finish(async () => {
      const { fits, output } = (await import('./plan.js')).plan(flags);
      console.log(output);
      return fits ? 0 : 1;
    }),
  );

program
  .command(TRAIN)
  .description('train or fine-tune a model on files of rows')
  .allowUnknownOption()
  .allowExcessArguments()
  .helpOption(false)
  .action(() => finish(() => train(process.argv.slice(3), null)));

program
  .command('consolidate')
  .description('write the weights of a checkpoint as safetensors that transformers loads')
  .argument('<dir>', 'folder with checkpoints')
  .argument('<out>', 'folder to make')
  .option('--tag <tag>', 'checkpoint; default: the latest')
  .addOption(new Option('--dtype <dtype>', 'of the weights').choices(EXPORT_DTYPES).default('fp32'))
  .option('--max-shard-size <size>', 'of a file: bytes, or 500MB, 5GB, 2GiB', byteCount, 5e9)
  .addOption(new Option('--format <format>', 'default: hf where it can be').choices(EXPORT_FORMATS))
  .action((dir: string, out: string, options: ConsolidateFlags) =>
    finish(async () => {
      const { consolidateCommand } = await import('./consolidate.js');
      console.log(await consolidateCommand(dir, out, options));
      return 0;
    }),
  );

addServeCommands(program, finish);

program
  .command('io')
  .description('measure a disk for optimizer state and print the fastest "aio" section')
  .argument('<path>', 'a folder on it')
  .option('--size <size>', 'of the file: bytes, or 500MB, 2GiB', byteCount, 2 ** 30)
  .option('--block_size <list>', 'bytes of a request (default: 1, 4 and 16 MiB)', byteCounts)
  .option('--queue_depth <list>', 'requests under way', positiveIntegers, [8, 32])
  .option('--threads <list>', 'for checksums', positiveIntegers, [1, 2, 4])
  .option('--parameters <n>', 'of a model: says what its steps cost', positiveInteger)
  .action((path: string, flags: IoFlags) =>
    finish(async () => {
      const { ioCommand } = await import('./io.js');
      console.log(ioCommand(path, flags, (line) => console.error(line)));
      return 0;
    }),
  );

program
  .command('launch-node', { hidden: true })
  .description('the ranks of one node; the launcher starts it through ssh')
  .argument('<node>', 'its number', Number)
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
  .version(version)
  .addHelpText('after', '\nOther commands (ds <command> --help):')
  .exitOverride(ended);

const shown = program.createHelp().visibleCommands(program);
const width = Math.max(...shown.map((command) => command.name().length)) + 2;
launcher.addHelpText(
  'after',
  shown.map((one) => `  ds ${one.name().padEnd(width)}${one.description()}`).join('\n'),
);

// "ds help plan" is "ds plan --help".
const [first, ...words] = process.argv.slice(2);
if (first === 'help') process.argv.splice(2, words.length + 1, ...words, '--help');

const named = commands.includes(process.argv[2] ?? '');
(named ? program : launcher).parseAsync();
