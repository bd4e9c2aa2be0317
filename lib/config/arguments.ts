// The command-line arguments of DeepSpeed's programs: --deepspeed and --deepspeed_config FILE.
import type { DsError } from '../errors.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import type { ConfigArguments } from './source.js';

export type { ConfigArguments } from './source.js';

/**
 * The methods of a command-line parser, such as commander's Command, that addConfigArguments()
 * calls.
 */
export interface OptionRegistry {
  /** Declares an option. */
  option(flags: string, description: string): unknown;
}

const OPTIONS = [
  ['--deepspeed', 'train with the engine (read by the program itself)'],
  ['--deepspeed_config <file>', 'the ds_config.json to read'],
  ['--deepscale', 'deprecated: --deepspeed'],
  ['--deepscale_config <file>', 'deprecated: --deepspeed_config'],
] as const;

/**
 * Adds the options to `command` and returns it; its parsed options are the `args` of initialize().
 */
export function addConfigArguments<Command extends OptionRegistry>(command: Command): Command {
  for (const [flags, description] of OPTIONS) command.option(flags, description);
  return command;
}

/** A command line, split into arguments of initialize() and of the program. */
export interface ParsedArguments {
  /** The `args` of initialize(). */
  args: ConfigArguments;
  /** All other arguments, in order. */
  rest: string[];
}

/**
 * Extracts the options from an argument list such as process.argv.slice(2). Accepts `--name FILE`,
 * `--name=FILE`, and dashes for underscores; ignores arguments after `--`. Throws DS_ARGUMENT for a
 * missing file, and if `argv` is not a list of strings.
 */
export function parseConfigArguments(argv: readonly string[]): ParsedArguments {
  if (!Array.isArray(argv) || argv.some((word) => typeof word !== 'string')) {
    throw valueError('parseConfigArguments', 'words, as of process.argv.slice(2)', argv);
  }
  const args: { -readonly [Key in keyof ConfigArguments]: ConfigArguments[Key] } = {};
  const rest: string[] = [];
  for (let i = 0; i < argv.length; ++i) {
    const word = argv[i] as string;
    if (word === '--') return { args, rest: [...rest, ...argv.slice(i)] };
    const [flag = '', inline] = splitOption(word);
    const name = flag.replaceAll('-', '_').replace(/^__/, '--');
    if (name === '--deepspeed' || name === '--deepscale') args.deepspeed = true;
    else if (name === '--deepspeed_config' || name === '--deepscale_config') {
      const file = inline ?? argv[++i];
      if (!file || file.startsWith('--')) throw missingFile(flag);
      args[name === '--deepspeed_config' ? 'deepspeed_config' : 'deepscale_config'] = file;
    } else rest.push(word);
  }
  return { args, rest };
}

/** Splits "--name=value" into its two parts. */
function splitOption(word: string): [flag: string, value?: string] {
  const equals = word.startsWith('--') ? word.indexOf('=') : -1;
  return equals < 0 ? [word] : [word.slice(0, equals), word.slice(equals + 1)];
}

function missingFile(flag: string): DsError {
  return argumentError(
    flag,
    'the path of a ds_config.json',
    'nothing',
    `Write ${flag} ds_config.json.`,
  );
}
