// The options of `ds serve` and `ds chat`.
import { type Command, InvalidArgumentError } from 'commander';

import { parseBytes } from './byte-size.js';
import type { ChatFlags } from './chat.js';
import type { ServeFlags } from './serve.js';

type Finish = (run: () => Promise<number>) => Promise<void>;

const MODEL = 'folder of a model or of checkpoints, or a name such as Qwen/Qwen3-0.6B';

/**
 * Adds both commands under the heading `group`; `finish` ends the process with a code or the line
 * of an error.
 */
export function addServeCommands(program: Command, group: string, finish: Finish): void {
  withModelOptions(program.command('serve').helpGroup(group))
    .description("serve a model over HTTP, for OpenAI's clients")
    .optionsGroup('Address and access:')
    .option('--host <address>', 'address to listen at', '127.0.0.1')
    .option('--port <n>', 'port; 0: a free one', atLeast(0), 8000)
    .option('--api-key-file <file>', 'file with an API key per line; also: DS_API_KEY')
    .option('--model-name <name>', 'model name of requests (default: name of the model)')
    .option(
      '--allowed-hosts <names>',
      'host names that keyless clients may use, with commas',
      names,
    )
    .option('--cors <origin>', 'origin of web pages that may send requests, or *')
    .optionsGroup('Limits:')
    .option('--max-body <size>', 'largest request body (default: 4MiB)', bytes)
    .option('--max-bodies <size>', 'bodies of all requests together (default: 128MiB)', bytes)
    .option('--max-prompt-tokens <n>', 'largest prompt', atLeast(1))
    .option('--max-prompt-chars <n>', 'longest text to tokenize (default: 16 a token)', atLeast(1))
    .option('--max-answers <n>', 'answers per prompt (default: 16)', atLeast(1))
    .option('--max-requests <n>', 'requests at once; more get 429 (default: 1024)', atLeast(1))
    .option('--max-connections <n>', 'open connections (default: 1024)', atLeast(1))
    .option('--prompt-timeout <seconds>', 'time to tokenize a prompt (default: 30)', atLeast(1))
    .option('--head-timeout <seconds>', 'time for headers to arrive (default: 10)', atLeast(1))
    .option('--body-timeout <seconds>', 'time for headers and body (default: 60)', atLeast(1))
    .option('--request-timeout <seconds>', 'time of a request (default: 600)', atLeast(1))
    .option('--drain-timeout <seconds>', 'time to finish after SIGTERM (default: 30)', atLeast(1))
    .optionsGroup('Execution:')
    .option('--tp <n>', 'GPUs, or CPU processes, that share the model', atLeast(1), 1)
    .option('--tokenizer-threads <n>', 'threads that tokenize prompts', atLeast(1), 2)
    .option('--seed <n>', 'seed of requests without one (default: random)', atLeast(0))
    .action((folder: string, flags: ServeFlags) =>
      finish(async () => (await import('./serve.js')).serveCommand(folder, flags)),
    );
  withModelOptions(program.command('chat').helpGroup(group))
    .description('chat with a model in the terminal')
    .optionsGroup('Sampling:')
    .option('--system <text>', 'system prompt')
    .option('--temperature <n>', 'temperature; 0: the likeliest token', fraction)
    .option('--top-p <n>', 'probability mass of the likeliest tokens', share)
    .option('--top-k <n>', 'number of the likeliest tokens; 0: all', atLeast(0))
    .option('--seed <n>', 'seed; equal seeds give equal answers', atLeast(0))
    .option('--max-tokens <n>', 'tokens of an answer', atLeast(1))
    .action((folder: string, flags: ChatFlags) =>
      finish(async () => (await import('./chat.js')).chatCommand(folder, flags)),
    );
}

function withModelOptions(command: Command): Command {
  return command
    .argument('<model>', MODEL)
    .optionsGroup('Model:')
    .option('--revision <name>', 'branch, tag or commit of a model of the hub')
    .option('--device <name>', '"cpu" or a GPU (default: a GPU if present)')
    .option('--dtype <name>', 'fp32, fp16 or bf16 (default: dtype of the folder)')
    .option('--context <n>', 'tokens of prompt and answer (default: at most 1024)', atLeast(2))
    .option('--config <file>', 'JSON configuration of the engine')
    .option('--tokenizer <folder>', 'folder or name of the tokenizer (default: of the model)')
    .option('--chat-template <file>', 'Jinja template (default: the one of the tokenizer)')
    .option('--no-graphs', 'launch kernels one by one, without recorded graphs');
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
