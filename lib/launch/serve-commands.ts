// The options of `ds serve` and `ds chat`.
import { type Command, InvalidArgumentError } from 'commander';

import { parseBytes } from './byte-size.js';
import type { ChatFlags } from './chat.js';
import type { ServeFlags } from './serve.js';

type Finish = (run: () => Promise<number>) => Promise<void>;

const FOLDER = "a model's folder as `hf download` makes it, or one of training checkpoints";

/** Adds both commands; `finish` ends the process with a code or an error's line. */
export function addServeCommands(program: Command, finish: Finish): void {
  withModelOptions(program.command('serve'))
    .description("answer requests of OpenAI's clients with a model, over HTTP")
    .option('--host <address>', 'to listen at', '127.0.0.1')
    .option('--port <n>', '0 takes a free one', atLeast(0), 8000)
    .option('--tp <n>', 'GPUs, or processes on the CPU, that share the model', atLeast(1), 1)
    .option('--api-key-file <file>', 'keys that open /v1, a line each; also: DS_API_KEY')
    .option('--model-name <name>', "what requests call it; default: the folder's name")
    .option('--allowed-hosts <names>', 'that clients without a key may name, with commas', names)
    .option('--cors <origin>', 'whose web pages may ask, such as https://chat.example, or *')
    .option('--tokenizer-threads <n>', 'that turn prompts into tokens', atLeast(1), 2)
    .option('--seed <n>', 'of answers whose requests have none; default: a random one', atLeast(0))
    .option('--max-body <size>', 'of a request: bytes, or 4MiB (the default)', bytes)
    .option('--max-bodies <size>', 'of all requests under way (default: 128MiB)', bytes)
    .option('--max-prompt-tokens <n>', 'of a prompt', atLeast(1))
    .option('--max-prompt-chars <n>', 'of a text to tokenize (default: 16 a token)', atLeast(1))
    .option('--prompt-timeout <seconds>', 'to tokenize one prompt (default: 30)', atLeast(1))
    .option('--max-answers <n>', 'to one prompt (default: 16)', atLeast(1))
    .option('--max-requests <n>', 'that run or wait; more are 429 (default: 1024)', atLeast(1))
    .option('--max-connections <n>', 'open at a time (default: 1024)', atLeast(1))
    .option('--head-timeout <seconds>', 'for the head of a request (default: 10)', atLeast(1))
    .option('--body-timeout <seconds>', 'for head and body (default: 60)', atLeast(1))
    .option('--request-timeout <seconds>', 'of one request (default: 600)', atLeast(1))
    .option('--drain-timeout <seconds>', 'after SIGTERM, to end (default: 30)', atLeast(1))
    .action((folder: string, flags: ServeFlags) =>
      finish(async () => (await import('./serve.js')).serveCommand(folder, flags)),
    );
  withModelOptions(program.command('chat'))
    .description('talk with a model in the terminal')
    .option('--system <text>', 'what it is told before the conversation')
    .option('--temperature <n>', '0 takes the likeliest token', fraction)
    .option('--top-p <n>', 'of the likeliest tokens, those that reach it together', share)
    .option('--top-k <n>', 'of the likeliest tokens, so many; 0 for all', atLeast(0))
    .option('--seed <n>', 'the same one gives the same answers', atLeast(0))
    .option('--max-tokens <n>', 'of an answer', atLeast(1))
    .action((folder: string, flags: ChatFlags) =>
      finish(async () => (await import('./chat.js')).chatCommand(folder, flags)),
    );
}

function withModelOptions(command: Command): Command {
  return command
    .argument('<folder>', FOLDER)
    .option('--device <name>', 'cpu, or a GPU by its name; default: a GPU where there is one')
    .option('--dtype <name>', "of the weights: fp32, fp16, bf16; default: the folder's")
    .option('--context <n>', 'tokens of prompt and answer (default: 1024 at most)', atLeast(2))
    .option('--config <file>', 'configuration of the engine, JSON')
    .option('--tokenizer <folder>', "of a tokenizer in place of the model's own")
    .option('--chat-template <file>', "a Jinja text in place of the tokenizer's own")
    .option('--no-graphs', 'launch the kernels of each step one by one on a GPU');
}

const names = (text: string): string[] => text.split(',').map((name) => name.trim());

const atLeast =
  (least: number) =>
  (text: string): number => {
    const value = Number(text);
    if (text.trim() !== '' && Number.isSafeInteger(value) && value >= least) return value;
    throw new InvalidArgumentError(`Expected a whole number of ${least} or more.`);
  };

function fraction(text: string): number {
  const value = Number(text);
  if (text.trim() !== '' && value >= 0 && Number.isFinite(value)) return value;
  throw new InvalidArgumentError('Expected a number of 0 or more.');
}

function share(text: string): number {
  const value = Number(text);
  if (text.trim() !== '' && value >= 0 && value <= 1) return value;
  throw new InvalidArgumentError('Expected a number from 0 to 1.');
}

function bytes(text: string): number {
  const value = parseBytes(text);
  if (value !== null) return value;
  throw new InvalidArgumentError('Expected bytes, such as 4MiB or 500KB.');
}
