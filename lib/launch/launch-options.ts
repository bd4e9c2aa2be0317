// Declares the options of `ds [options] script.js [arguments]`, with DeepSpeed's names.

import { Command, Option } from 'commander';
import { valueError } from '../runtime/input-errors.js';
import { boolean, declareOption, integer, type Options, oneOf, string } from '../runtime/option.js';
import { required } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';
import { refuse } from './argument-error.js';
import { addDeclared } from './declared-flags.js';

/** Ranks and devices. */
const DEVICES = {
  num_gpus: integer('use the first N GPUs of each node', {
    min: 1,
    shown: 'all',
    flag: '--num_accelerators, --num_gpus <n>',
  }),
  num_procs: integer('start N processes on the CPU of each node, without a GPU', {
    min: 1,
    flag: '--num_procs <n>',
  }),
  include: string('use only these GPUs, in this order: `host:0,1@host2`, or `localhost:2,3`', {
    flag: '-i, --include <filter>',
  }),
  exclude: string('use all nodes and GPUs except these', { flag: '-e, --exclude <filter>' }),
  bind_core_list: string('use only these CPUs, such as `0-15,32-47`', {
    shown: 'all that `ds` may use',
    flag: '--bind_core_list <cpus>',
  }),
};

/** Several nodes. */
const NODES = {
  hostfile: string('file that lists the machines, with a line `host slots=N` for each', {
    shown: '`/job/hostfile`, else this machine',
    flag: '-H, --hostfile <file>',
  }),
  num_nodes: integer('use the first N hosts; with `--node_rank`, the number of nodes', {
    min: 1,
    shown: 'all',
    flag: '--num_nodes <n>',
  }),
  node_rank: integer('number of this node, from 0, if you start `ds` on each node yourself', {
    min: 0,
    flag: '--node_rank <n>',
  }),
  master_addr: string('address of the machine of rank 0, which the other nodes can reach', {
    shown: 'first host; on one node 127.0.0.1',
    flag: '--master_addr <address>',
  }),
  master_port: declareOption(
    requirePort,
    'port on the machine of rank 0; choose another if it is in use',
    {
      shown: '29500; on one node a free port',
      flag: '--master_port <port>',
      syntax: 'integer',
    },
  ),
  no_ssh: boolean(
    'with a hostfile: start only the processes of this node; then run `ds` on each node',
    { flag: '--no_ssh' },
  ),
  ssh_port: declareOption(requirePort, 'port of ssh', {
    flag: '--ssh_port <port>',
    syntax: 'integer',
  }),
  launcher: string('how to reach other nodes: only ssh is supported', {
    default: 'ssh',
    shown: '`ssh`',
    flag: '--launcher <name>',
  }),
  launcher_args: string('more options for ssh, such as `-i key`', {
    flag: '--launcher_args <words>',
  }),
};

/** Options of the script and its processes. */
const RUN = {
  module: boolean('the script is the name of a module, found from the current folder', {
    flag: '--module',
  }),
  no_local_rank: boolean(
    'do not pass `--local_rank=N` to the script; use it if the script refuses the argument',
    { flag: '--no_local_rank' },
  ),
  grace_period: integer('seconds that processes get to save and end, before SIGKILL', {
    min: 0,
    default: 30,
    flag: '--grace_period <seconds>',
  }),
  save_pid: boolean("write the launcher's pid to `<pid>.ds` in the temporary folder", {
    flag: '--save_pid',
  }),
};

/** Options of the search and of the output. */
const OUTPUT = {
  /** Searches for the fastest configuration; "run" then trains with it. */
  autotuning: oneOf(['tune', 'run'])(
    '[search](autotuning.md) for the fastest `ds_config.json`; `run` then trains with it',
    { flag: '--autotuning <mode>' },
  ),
  enable_each_rank_log: string(
    'write the output of each rank to `<folder>/<UTC time>_rank<N>.log` too',
    {
      flag: '--enable_each_rank_log <folder>',
    },
  ),
  quiet: boolean('print no notices', { flag: '-q, --quiet' }),
};

/** Options of the launcher, by heading of the help. */
export const LAUNCH = {
  'Ranks and devices:': DEVICES,
  'Several nodes:': NODES,
  'Script and processes:': RUN,
  'Search and output:': OUTPUT,
};

/** Values of the launcher's options, named as on the command line. */
export interface LaunchOptions
  extends Options<typeof DEVICES>,
    Options<typeof NODES>,
    Options<typeof RUN>,
    Options<typeof OUTPUT> {
  bind_cores_to_rank: boolean;
  launcher: string;
  grace_period: number;
  /** No effect: ssh reaches a single remote node too. */
  force_multi?: boolean;
  /** No effect: nothing is checked before ssh is used. */
  no_ssh_check?: boolean;
}

/**
 * Creates the launcher's command. `start` receives the options, the script and the script's
 * arguments unchanged.
 */
export function launchCommand(
  start: (options: LaunchOptions, script: string, args: string[]) => Promise<void>,
): Command {
  const command = new Command('ds')
    .description(
      'Trains, serves and evaluates language models. Without a command, ds runs a script with one ' +
        'process for each GPU, on this machine or on the nodes of a hostfile.',
    )
    .argument('<script>', 'JavaScript or TypeScript file')
    .argument('[arguments...]', 'arguments of the script')
    .passThroughOptions()
    .action((script, args, options) => start({ ...DEFAULTS, ...options }, script, args));
  return addLaunchOptions(command);
}

/**
 * Takes the launcher's options, in snake_case or kebab-case, from the words of a command that
 * starts ranks. They override `defaults`. Returns the other words in their order.
 */
export function takeLaunchOptions(
  words: readonly string[],
  defaults: LaunchOptions | null,
): { options: LaunchOptions; rest: string[] } {
  const command = new Command('ds train').allowUnknownOption().allowExcessArguments();
  addLaunchOptions(command);
  const names = new Map(
    command.options.map(({ long }) => [long?.replaceAll('_', '-'), required(long)]),
  );
  command
    .helpOption(false)
    .exitOverride()
    .configureOutput({ writeErr: () => {} });
  try {
    command.parse(
      words.map((word) => toCanonicalName(word, names)),
      { from: 'user' },
    );
  } catch (error) {
    return refuse('ds train', 'options of the launcher', errorMessage(error));
  }
  const isGiven = (name: string) => command.getOptionValueSource(name) === 'cli';
  const options = Object.entries(command.opts()).filter(([name]) => !defaults || isGiven(name));
  return {
    options: { ...DEFAULTS, ...defaults, ...Object.fromEntries(options) } as LaunchOptions,
    rest: command.args,
  };
}

/** Converts an option to its declared spelling: "--num-procs=2" becomes "--num_procs=2". */
function toCanonicalName(word: string, names: ReadonlyMap<string | undefined, string>): string {
  const [flag = '', ...value] = word.split('=');
  const name = flag.startsWith('--') ? names.get(flag.replaceAll('_', '-')) : undefined;
  return name ? [name, ...value].join('=') : word;
}

/** Default values of the options that always have a value. */
const DEFAULTS = {
  launcher: NODES.launcher.absent('--launcher'),
  grace_period: RUN.grace_period.absent('--grace_period'),
};

function addLaunchOptions(command: Command): Command {
  for (const [heading, declared] of Object.entries(LAUNCH)) {
    addDeclared(command.optionsGroup(heading), declared);
    if (declared !== DEVICES) continue;
    command.option('--no-bind_cores_to_rank', 'do not bind ranks to the cores of their GPU');
  }
  for (const flag of ['--bind_cores_to_rank', '--force_multi', '--no_ssh_check']) {
    command.addOption(new Option(flag).hideHelp());
  }
  return command.optionsGroup('Options:');
}

/** Throws DS_ARGUMENT for options that conflict. */
export function requireConsistent(options: LaunchOptions): void {
  const listGiven = (names: readonly (keyof LaunchOptions)[]) =>
    names.filter((name) => options[name] !== undefined && options[name] !== '');
  const requireExclusive = (names: readonly (keyof LaunchOptions)[], others: typeof names) => {
    const [item] = listGiven(names);
    const [other] = listGiven(others.filter((name) => name !== item));
    if (item && other) refuse(`--${item}`, `either --${item} or --${other}`, 'both');
  };
  requireExclusive(
    ['include', 'exclude'],
    ['include', 'exclude', 'num_nodes', 'num_gpus', 'num_procs'],
  );
  requireExclusive(['num_gpus'], ['num_procs']);
  requireExclusive(['node_rank'], ['ssh_port', 'launcher_args']);
  const { launcher } = options;
  if (launcher === 'ssh' || launcher === 'pdsh') return;
  refuse(
    '--launcher',
    'ssh (pdsh means the same)',
    JSON.stringify(launcher),
    'Start ranks with srun or mpirun instead of ds, or start ds on each node with --node_rank.',
  );
}

function requirePort(op: string, port: number): number {
  if (Number.isInteger(port) && port >= 1 && port <= 65_535) return port;
  throw valueError(op, 'a port, 1 to 65535', port);
}
