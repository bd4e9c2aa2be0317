// What `ds train --help` prints.
import { ALIASES, KINDS, type Kind, type TrainArguments } from './arguments.js';

/** What a kind is written as. */
const SHOWN: Readonly<Record<Kind, string>> = {
  ...{ text: 'TEXT', integer: 'N', number: 'X', switch: '[true|false]' },
  ...{ texts: 'TEXT...', integers: 'N...', record: 'JSON' },
  ...{ 'text or record': 'FILE|JSON', 'text or switch': '[TEXT|true|false]' },
};

/** One line for each argument. */
export function helpText(): string {
  const names = Object.keys(KINDS) as (keyof TrainArguments)[];
  const lines = names.map((name) => {
    const others = Object.keys(ALIASES).filter((alias) => ALIASES[alias] === name);
    const also = others.length > 0 ? `  also --${others.join(', --')}` : '';
    return `  ${`--${name} ${SHOWN[KINDS[name]]}`.padEnd(46)}${also}`.trimEnd();
  });
  return `Usage: ds train --model DIR --data FILE.jsonl --output DIR [arguments]
       ds --num_gpus 2 train ..., ds train --num_procs 2 ...

Trains or fine-tunes a model on files of rows. Arguments are those of transformers, TRL and PEFT,
as --snake_case or --kebab-case; docs/trainer.md says what each does. The options of the launcher
(ds --help) may stand among them.

  ${'--config FILE'.padEnd(46)}arguments in YAML or JSON; the command line wins
${lines.join('\n')}`;
}
