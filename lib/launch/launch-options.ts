// The options of `ds [options] script.js [arguments]`: DeepSpeed's names, read by commander.

import { Command, InvalidArgumentError, Option } from 'commander';
import { required } from '../runtime/required.js';

import { refuse } from './argument-error.js';

/** Named as on the command line. */
export interface LaunchOptions {
  num_gpus?: number;
  num_procs?: number;
  num_nodes?: number;
  hostfile?: string;
  include?: string;
  exclude?: string;
  master_addr?: string;
  master_port?: number;
  node_rank?: number;
  module?: boolean;
  no_local_rank?: boolean;
  enable_each_rank_log?: string;
  bind_cores_to_rank: boolean;
  bind_core_list?: string;
  launcher: string;
  launcher_args?: string;
  ssh_port?: number;
  no_ssh?: boolean;
  no_ssh_check?: boolean;
  force_multi?: boolean;
  save_pid?: boolean;
  grace_period: number;
  quiet?: boolean;
  /** Search the fastest configuration, and with "run" train with it. */
  autotuning?: 'tune' | 'run';
}

/** `start` gets the options, the script, and the script's arguments untouched. */
export function launchCommand(
  start: (options: LaunchOptions, script: string, args: string[]) => Promise<void>,
): Command {
  const command = new Command('ds')
    .description(
      'Runs a command below, or a script as one process per GPU, here or on the nodes of a hostfile.',
    )
    .argument('<script>', 'JavaScript or TypeScript file')
    .argument('[arguments...]', 'arguments of the script')
    .passThroughOptions()
    .action((script, args, options) => start(options, script, args));
  for (const option of launchOptions()) command.addOption(option);
  return command;
}

/**
 * Takes the launcher's options, in snake_case or kebab-case, from the words of a command that
 * starts ranks. They override `before`. Returns the other words in their order.
 */
export function takeLaunchOptions(
  words: readonly string[],
  before: LaunchOptions | null,
): { options: LaunchOptions; rest: string[] } {
  const command = new Command('ds train').allowUnknownOption().allowExcessArguments();
  const known = launchOptions();
  for (const option of known) command.addOption(option);
  const names = new Map(known.map(({ long }) => [long?.replaceAll('_', '-'), required(long)]));
  command
    .helpOption(false)
    .exitOverride()
    .configureOutput({ writeErr: () => {} });
  try {
    command.parse(
      words.map((word) => spelled(word, names)),
      { from: 'user' },
    );
  } catch (error) {
    const { message } = error as Error;
    return refuse('ds train', 'options of the launcher as they are', message);
  }
  const isGiven = (name: string) => command.getOptionValueSource(name) === 'cli';
  const options = Object.entries(command.opts()).filter(([name]) => !before || isGiven(name));
  return {
    options: { ...before, ...Object.fromEntries(options) } as LaunchOptions,
    rest: command.args,
  };
}

/** "--num-procs=2" as "--num_procs=2". */
function spelled(word: string, names: ReadonlyMap<string | undefined, string>): string {
  const [flag = '', ...value] = word.split('=');
  const own = flag.startsWith('--') ? names.get(flag.replaceAll('_', '-')) : undefined;
  return own ? [own, ...value].join('=') : word;
}

function launchOptions(): Option[] {
  return [
    ...inGroup('Ranks and devices:', placeOptions()),
    ...inGroup('Several nodes:', nodeOptions()),
    ...inGroup('Script and processes:', runOptions()),
    ...inGroup('Search and output:', outputOptions()),
  ];
}

const inGroup = (heading: string, options: readonly Option[]): Option[] =>
  options.map((option) => option.helpGroup(heading));

function placeOptions(): Option[] {
  return [
    new Option('--num_accelerators, --num_gpus <n>', 'GPUs per node (default: all)').argParser(
      wholeFrom(1),
    ),
    new Option('--num_procs <n>', 'CPU processes per node').argParser(wholeFrom(1)),
    new Option('-i, --include <filter>', 'use only these nodes and GPUs: "host:0,1@host2"'),
    new Option('-e, --exclude <filter>', 'use all nodes and GPUs except these'),
    new Option('--bind_cores_to_rank').default(true).hideHelp(),
    new Option('--no-bind_cores_to_rank', 'do not bind ranks to the cores of their GPU'),
    new Option('--bind_core_list <cpus>', 'CPUs to divide among the ranks: "0-15,32-47"'),
  ];
}

function nodeOptions(): Option[] {
  return [
    new Option(
      '-H, --hostfile <file>',
      'lines "host slots=N" (default: /job/hostfile if it exists)',
    ),
    new Option('--num_nodes <n>', 'nodes (default: all of the hostfile)').argParser(wholeFrom(1)),
    new Option('--node_rank <n>', 'number of this node, if ds is started on each node').argParser(
      wholeFrom(0),
    ),
    new Option('--master_addr <address>', 'address of the first node'),
    new Option(
      '--master_port <port>',
      'port on the first node (default: 29500; one node: a free port)',
    ).argParser(port),
    new Option('--no_ssh', 'hostfile without ssh: ds is started on each node'),
    new Option('--ssh_port <port>', 'port of ssh').argParser(port),
    new Option('--launcher <name>', 'way to reach other nodes').default('ssh'),
    new Option('--launcher_args <words>', 'further arguments of ssh'),
    new Option('--force_multi', 'no effect: ssh reaches a single remote node too').hideHelp(),
    new Option('--no_ssh_check', 'no effect: nothing is checked before ssh is used').hideHelp(),
  ];
}

function runOptions(): Option[] {
  return [
    new Option('--module', 'the script is the name of a module'),
    new Option('--no_local_rank', 'do not pass --local_rank=N to the script'),
    new Option('--grace_period <seconds>', 'time between SIGTERM and SIGKILL of the ranks')
      .default(30)
      .argParser(wholeFrom(0)),
    new Option('--save_pid', 'write the pid of ds to <pid>.ds in the temporary folder'),
  ];
}

function outputOptions(): Option[] {
  return [
    new Option(
      '--autotuning <mode>',
      'search the fastest ds_config.json; "run" also trains',
    ).choices(['tune', 'run']),
    new Option('--enable_each_rank_log <folder>', 'write a log file for each rank'),
    new Option('-q, --quiet', 'print no notices'),
  ];
}

/** Throws DS_ARGUMENT for options that exclude each other. */
export function requireConsistent(options: LaunchOptions): void {
  const given = (names: readonly (keyof LaunchOptions)[]) =>
    names.filter((name) => options[name] !== undefined && options[name] !== '');
  const exclusive = (names: readonly (keyof LaunchOptions)[], others: typeof names) => {
    const [one] = given(names);
    const [other] = given(others.filter((name) => name !== one));
    if (one && other) refuse(`--${one}`, `no --${other} with it`, 'both');
  };
  exclusive(['include', 'exclude'], ['include', 'exclude', 'num_nodes', 'num_gpus', 'num_procs']);
  exclusive(['num_gpus'], ['num_procs']);
  exclusive(['node_rank'], ['ssh_port', 'launcher_args']);
  const { launcher } = options;
  if (launcher === 'ssh' || launcher === 'pdsh') return;
  refuse(
    '--launcher',
    'ssh (pdsh means the same)',
    JSON.stringify(launcher),
    'Start ranks with srun or mpirun instead of ds, or start ds on each node with --node_rank.',
  );
}

function wholeFrom(least: number): (text: string) => number {
  return (text) => {
    const value = /^\d+$/.test(text) ? Number(text) : Number.NaN;
    if (value >= least && value <= 2 ** 31) return value;
    throw new InvalidArgumentError(`Expected a whole number from ${least}.`);
  };
}

function port(text: string): number {
  const value = wholeFrom(1)(text);
  if (value <= 65_535) return value;
  throw new InvalidArgumentError('Expected a port, 1 to 65535.');
}
