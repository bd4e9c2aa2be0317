// The help of `ds train`: every argument by group.
import { Command, Option } from 'commander';
import { type ArgumentHelp, HELP_GROUPS } from './argument-help.js';
import { ALIASES, KINDS, type Kind, type TrainArguments } from './arguments.js';

/** The placeholder of a value of each kind. */
const SHOWN: Readonly<Record<Kind, string>> = {
  ...{ text: '<text>', integer: '<n>', number: '<x>', switch: '[bool]' },
  ...{ texts: '<text...>', integers: '<n...>', record: '<json>' },
  ...{ 'text or record': '<file>', 'text or switch': '[text]' },
  'integer or switch': '[n]',
};

/** A description for each argument, with its default and its other names. */
export function helpText(): string {
  const command = helpCommand();
  let text = '';
  command.configureOutput({ writeOut: (part) => (text += part) }).outputHelp();
  return text.trimEnd();
}

/** A command with an option for each argument, which only prints help. */
export function helpCommand(): Command {
  const command = new Command('ds train')
    .usage('--model DIR --data FILE.jsonl --output DIR [arguments]')
    .description(
      'Trains or fine-tunes a model on files of rows. Names follow transformers, TRL and PEFT, as ' +
        '--snake_case or --kebab-case. Options of the launcher (ds --help) are allowed too.',
    )
    .helpOption(false)
    .optionsGroup('Arguments from a file:')
    .option('--config <file>', 'arguments in YAML or JSON; the command line overrides it');
  for (const [heading, help] of HELP_GROUPS) {
    for (const [name, text] of Object.entries(help) as [keyof TrainArguments, ArgumentHelp][]) {
      command.addOption(optionOf(name, text).helpGroup(`${heading}:`));
    }
  }
  command.addHelpText(
    'after',
    '\nExamples:\n  ds train --model llama --data chats.jsonl --output tuned --lora --bf16' +
      '\n  ds --num_gpus 4 train --config run.yaml' +
      '\n  ds train --num_procs 2 --config run.yaml\n\ndocs/trainer.md explains the arguments.',
  );
  return command;
}

function optionOf(name: keyof TrainArguments, help: ArgumentHelp): Option {
  const [text, fallback] = typeof help === 'string' ? [help, null] : help;
  const others = Object.keys(ALIASES).filter((alias) => ALIASES[alias] === name);
  const also = others.length > 0 ? `; also --${others.join(', --')}` : '';
  const option = new Option(`--${name} ${SHOWN[KINDS[name]]}`, `${text}${also}`);
  return fallback === null ? option : option.default(fallback, fallback);
}
