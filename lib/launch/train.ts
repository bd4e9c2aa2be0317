// `ds train`: launches ranks of this package's training program, with the arguments of
// transformers.
import type { TrainArguments } from '../trainer/command/arguments.js';
import { checkArguments } from '../trainer/command/check-arguments.js';
import { formatHelp } from '../trainer/command/help.js';
import { pullModel } from '../trainer/command/hub-model.js';
import { readArguments } from '../trainer/command/read-arguments.js';
import { refuse } from './argument-error.js';
import { autotuneCommand, type PackagedProgram } from './autotune.js';
import { launch } from './launch.js';
import { type LaunchOptions, takeLaunchOptions } from './launch-options.js';

const TRAIN_PROGRAM: PackagedProgram = {
  name: 'train',
  configArguments: {
    train_micro_batch_size_per_gpu: '--per_device_train_batch_size',
    gradient_accumulation_steps: '--gradient_accumulation_steps',
  },
};

/**
 * Runs `ds train` with `words` and returns the exit code of launch(). `words` may contain options
 * of the launcher; they override `defaults`. Argument errors appear here once, not on each rank.
 */
export async function trainCommand(
  words: readonly string[],
  defaults: LaunchOptions | null = null,
): Promise<number> {
  if (words.includes('--help') || words.includes('-h')) {
    console.log(formatHelp());
    return 0;
  }
  const { options, rest: trainWords } = takeLaunchOptions(words, defaults);
  const { args, notices } = await readArguments(trainWords);
  checkArguments(args);
  if (!options.quiet) for (const notice of notices) console.error(`ds: ${notice}`);
  if (args.device?.includes(':')) {
    const hint = 'Use --include localhost:0,1 or CUDA_VISIBLE_DEVICES to choose GPUs.';
    refuse('--device', '"cuda" or "cpu" without a number', `"${args.device}"`, hint);
  }
  const usesCpu = args.use_cpu === true || args.device === 'cpu';
  if (usesCpu && options.num_gpus) refuse('--device', 'no "cpu" with --num_gpus', '"cpu"');
  const rankWords = [...trainWords, ...(await pullModel(args))];
  const placements = [options.num_procs, options.hostfile, options.include, options.exclude];
  const procs = usesCpu && placements.every((item) => item === undefined) ? { num_procs: 1 } : {};
  // In the package, a JavaScript file; in its sources, the file type that this process runs.
  const name = require.resolve('../trainer/command/main.js');
  const program = { name, args: rankWords, node: process.execArgv };
  const launchOptions = { ...options, ...procs, module: false, no_local_rank: true };
  if (!launchOptions.autotuning) return launch(launchOptions, program);
  return autotuneCommand(
    launchOptions,
    { ...program, args: [...rankWords, ...findTunedArguments(rankWords, args)] },
    TRAIN_PROGRAM,
  );
}

/**
 * Returns words for the arguments of the --config file that a search changes. The words of the
 * search override them.
 */
function findTunedArguments(words: readonly string[], args: TrainArguments): string[] {
  const names = new Set(words.map((word) => word.replace(/=.*/s, '').replaceAll('-', '_')));
  const tuned = [
    'deepspeed',
    'per_device_train_batch_size',
    'gradient_accumulation_steps',
  ] as const;
  return tuned.flatMap((name) => {
    const { [name]: value } = args;
    const isOpen = value === undefined || typeof value === 'object' || names.has(`__${name}`);
    return isOpen ? [] : [`--${name}`, String(value)];
  });
}
