// Formats the help of `ds train`, with all arguments by group.
import { Command, Option } from 'commander';
import {
  type Option as Declaration,
  defaultText,
  plainText,
  type Syntax,
} from '../../runtime/option.js';
import { GROUPS } from './arguments.js';

/** Placeholders for the values of arguments in the help, by syntax. */
const PLACEHOLDERS: Readonly<Record<Syntax, string>> = {
  text: '<text>',
  integer: '<n>',
  number: '<x>',
  switch: '[bool]',
  texts: '<text...>',
  integers: '<n...>',
  numbers: '<x...>',
  record: '<json>',
  'text or record': '<file>',
  'text or switch': '[text]',
  'integer or switch': '[n]',
  bytes: '<size>',
  sizes: '<sizes>',
  names: '<names>',
  pairs: '<name=value>',
  'pair list': '<name=value,...>',
};

/** Returns the help. Each argument has a description, its default and its other names. */
export function formatHelp(): string {
  const command = createHelpCommand();
  let text = '';
  command.configureOutput({ writeOut: (part) => (text += part) }).outputHelp();
  return text.trimEnd();
}

/** Creates a command that only prints help. It has one option for each argument. */
export function createHelpCommand(): Command {
  const command = new Command('ds train')
    .usage('--model DIR --data FILE.jsonl --output DIR [arguments]')
    .description(
      'Trains or fine-tunes a model on files of rows. Names follow transformers, TRL and PEFT, as ' +
        '--snake_case or --kebab-case. Options of the launcher (ds --help) are allowed too.',
    )
    .helpOption(false)
    .optionsGroup('Arguments from a file:')
    .option('--config <file>', 'arguments in YAML or JSON; the command line overrides it');
  for (const [heading, group] of Object.entries(GROUPS)) {
    for (const [name, declared] of Object.entries(group)) {
      command.addOption(createOption(name, declared).helpGroup(`${heading}:`));
    }
  }
  command.addHelpText(
    'after',
    '\nExamples:\n  ds train --model llama --data chats.jsonl --output tuned --lora --bf16' +
      '\n  ds --num_gpus 4 train --config run.yaml' +
      '\n  ds train --num_procs 2 --config run.yaml\n\ndocs/train-command.md explains the arguments.',
  );
  return command;
}

function createOption(name: string, declared: Declaration<unknown, unknown>): Option {
  const { help, also = [], syntax = 'text' } = declared;
  const others = also.length > 0 ? `; also --${also.join(', --')}` : '';
  const option = new Option(`--${name} ${PLACEHOLDERS[syntax]}`, plainText(help) + others);
  const fallback = defaultText(declared);
  return fallback === null ? option : option.default(fallback, plainText(fallback));
}
