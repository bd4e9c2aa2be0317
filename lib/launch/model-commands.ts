// The commands for folders with weights.
import { type Command, InvalidArgumentError, Option } from 'commander';

import { parseBytes } from './byte-size.js';
import type { ConsolidateFlags } from './consolidate.js';
import type { EvalFlags } from './eval.js';
import type { ExportFlags, MergeFlags } from './export.js';

type Finish = (run: () => Promise<number>) => Promise<void>;

const DTYPES = ['fp32', 'fp16', 'bf16'];
const GGUF_TYPES = ['F32', 'F16', 'Q8_0', 'Q4_K_M'];
const FORMATS = ['hf', 'native'];
const OVERLONG = ['cut', 'split', 'drop'];
const LOSSES = ['all', 'completion', 'assistant'];

/**
 * Adds the commands under the heading `group`; `finish` ends the process with a code or the line of
 * an error.
 */
export function addModelCommands(program: Command, group: string, finish: Finish): void {
  evalCommandOf(program.command('eval').helpGroup(group), finish);
  mergeCommandOf(program.command('merge').helpGroup(group), finish);
  exportCommandOf(program.command('export').helpGroup(group), finish);
  consolidateCommandOf(program.command('consolidate', { hidden: true }), finish);
}

function evalCommandOf(command: Command, finish: Finish): void {
  command
    .description('loss, perplexity and multiple-choice accuracy of a model')
    .argument('<model>', 'folder of a model, checkpoints or an adapter; name of the hub')
    .optionsGroup('Rows:')
    .option('--data <file>', 'rows, as for ds train; may be repeated', collected)
    .option('--seq <n>', "tokens of a sample (default: 1024, or the model's maximum)", positive)
    .option('--packing', 'fill each sample with several rows')
    .addOption(choice('--overlong <way>', 'rows longer than --seq', OVERLONG).default('cut'))
    .addOption(choice('--loss <kind>', 'tokens that count; without it, as ds train', LOSSES))
    .option('--text-key <key>', 'key of the text in a row', 'text')
    .optionsGroup('Multiple-choice questions:')
    .option('--tasks <file>', 'rows {context, choices, answer}; may be repeated', collected)
    .option('--delimiter <text>', 'text between context and choice', ' ')
    .option('--add-bos', "begin each context with the tokenizer's BOS token")
    .optionsGroup('Model:')
    .option('--adapter <folder>', 'adapter in the format of PEFT')
    .option('--tokenizer <folder>', 'tokenizer (default: the one of the model)')
    .option('--device <name>', '"cpu" or a GPU (default: a GPU if present)')
    .addOption(choice('--dtype <dtype>', 'dtype of the weights; without it, as the folder', DTYPES))
    .option('--batch <n>', 'samples of a forward', positive, 8)
    .optionsGroup('Output:')
    .option('--json', 'print JSON')
    .action((folder: string, flags: EvalFlags) =>
      finish(async () => {
        const { evalCommand } = await import('./eval.js');
        console.log(await evalCommand(folder, flags, showProgress));
        return 0;
      }),
    );
}

function mergeCommandOf(command: Command, finish: Finish): void {
  command
    .description('merge an adapter into its base model')
    .argument('<model>', 'folder of the base model, or name of the hub')
    .argument('<adapter>', 'folder of the adapter, or name of the hub')
    .requiredOption('--output <folder>', 'folder to create (required)')
    .addOption(shardSize())
    .action((folder: string, adapter: string, flags: MergeFlags) =>
      finish(async () => {
        console.log(await (await import('./export.js')).mergeCommand(folder, adapter, flags));
        return 0;
      }),
    );
}

function exportCommandOf(command: Command, finish: Finish): void {
  const dtype = 'dtype; without it, fp32 of a checkpoint, else unchanged';
  command
    .description('export a run or a checkpoint as a folder of Hugging Face')
    .argument('<folder>', 'run of ds train, folder of checkpoints, or model')
    .requiredOption('--output <folder>', 'folder to create, or file of --gguf (required)')
    .option('--tag <tag>', 'checkpoint, such as checkpoint-500 (default: the latest)')
    .addOption(new Option('--dtype <dtype>', dtype).choices(DTYPES))
    .addOption(shardSize())
    .addOption(choice('--format <format>', 'names and layout; without it, hf if possible', FORMATS))
    .addOption(choice('--gguf <type>', 'write one GGUF file --output for llama.cpp', GGUF_TYPES))
    .action((folder: string, flags: ExportFlags) =>
      finish(async () => {
        console.log(await (await import('./export.js')).exportCommand(folder, flags));
        return 0;
      }),
    );
}

/** The older spelling of `ds export` for folders of checkpoints. */
function consolidateCommandOf(command: Command, finish: Finish): void {
  command
    .description('export a checkpoint; the same as ds export <dir> --output <out>')
    .argument('<dir>', 'folder with checkpoints')
    .argument('<out>', 'folder to create')
    .option('--tag <tag>', 'checkpoint (default: the latest)')
    .addOption(choice('--dtype <dtype>', 'dtype of the weights', DTYPES).default('fp32'))
    .addOption(shardSize())
    .addOption(choice('--format <format>', 'names and layout; without it, hf if possible', FORMATS))
    .action((dir: string, out: string, options: ConsolidateFlags) =>
      finish(async () => {
        const { consolidateCommand } = await import('./consolidate.js');
        console.log(await consolidateCommand(dir, out, options));
        return 0;
      }),
    );
}

const shardSize = (): Option =>
  new Option('--max-shard-size <size>', 'largest file, in bytes or as 500MB, 5GB, 2GiB')
    .argParser(byteCount)
    .default(5e9, '5GB');

/** Rewrites one line of the terminal; null clears it. */
function showProgress(line: string | null): void {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${line ?? ''}`);
}

const choice = (flags: string, text: string, values: readonly string[]): Option =>
  new Option(flags, text).choices(values);

const collected = (text: string, others: string[] = []): string[] => [...others, text];

function positive(text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value > 0) return value;
  throw new InvalidArgumentError('Expected a positive integer.');
}

function byteCount(text: string): number {
  const bytes = parseBytes(text);
  if (bytes !== null) return bytes;
  throw new InvalidArgumentError('Expected bytes, such as 5GB, 500MB or 2GiB.');
}
