// Adds the commands `ds serve` and `ds chat`.
import type { Command } from 'commander';

import { CHAT, CHAT_SAMPLING } from '../serve/chat-options.js';
import { REQUEST_LIMITS, SERVER_LIMITS } from '../serve/limits.js';
import { SERVE } from '../serve/serve-options.js';
import { addDeclared, type RunToExitCode } from './declared-flags.js';
import { ENGINE, type EngineFlags, SERVER, type ServeFlags } from './engine-flags.js';
import { withAdvice } from './foreign-flags.js';

const MODEL = 'folder of a model or of checkpoints, or a name such as Qwen/Qwen3-0.6B';

/**
 * Adds the commands under the heading `group`. `finish` runs a command, prints its error as one
 * line, and ends the process.
 */
export function addServeCommands(program: Command, group: string, finish: RunToExitCode): void {
  const serve = withModelOptions(program.command('serve').helpGroup(group), '[model]')
    .description('serve models over HTTP, for clients of OpenAI and Anthropic')
    .configureOutput({ outputError: (text, write) => write(withAdvice(text)) })
    .addHelpText(
      'after',
      `
Examples:
  ds serve Qwen/Qwen3-0.6B
  ds serve tuned --context 8192 --port 9000
  DS_API_KEY=secret ds serve tuned --host 0.0.0.0

docs/serving-options.md explains the options.`,
    )
    .action((folder: string | undefined, flags: ServeFlags) =>
      finish(async () => (await import('./serve.js')).serveCommand(folder, flags)),
    );
  addDeclared(serve.optionsGroup('Server:'), { ...SERVE, ...SERVER });
  addDeclared(serve.optionsGroup('Limits:'), { ...REQUEST_LIMITS, ...SERVER_LIMITS });
  const chat = withModelOptions(program.command('chat').helpGroup(group))
    .description('chat with a model in the terminal')
    .action((folder: string, flags: EngineFlags) =>
      finish(async () => (await import('./chat.js')).chatCommand(folder, flags)),
    );
  addDeclared(chat.optionsGroup('Sampling:'), { ...CHAT, ...CHAT_SAMPLING });
}

function withModelOptions(command: Command, argument = '<model>'): Command {
  return addDeclared(command.argument(argument, MODEL).optionsGroup('Model:'), ENGINE).option(
    '--no-graphs',
    'launch kernels one by one, without recorded graphs',
  );
}
