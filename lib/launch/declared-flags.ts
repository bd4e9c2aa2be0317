// Options of commands from declarations: their help, their check, and their values by name.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { DsError } from '../errors.js';
import {
  type Option as Declaration,
  type Declared,
  defaultText,
  type Options,
  plainText,
} from '../runtime/option.js';
import { parseBytes } from './byte-size.js';

type Any = Declaration<unknown, unknown>;

/** Adds an option for each declaration with a flag. Returns `command`. */
export function addDeclared(command: Command, declared: Declared): Command {
  for (const option of Object.values(declared)) {
    if (option.flag !== undefined) command.addOption(flagOf(option.flag, option));
  }
  return command;
}

function flagOf(flags: string, option: Any): Option {
  const fallback = defaultText(option);
  const shown = fallback === null ? '' : ` (default: ${plainText(fallback)})`;
  const flag = new Option(flags, plainText(option.help) + shown);
  if (option.syntax === 'switch') return flag;
  if (option.values) return flag.choices(option.values);
  return flag.argParser((text, previous?: unknown) => {
    try {
      return option.read(flags, wordValue(text, option, previous));
    } catch (error) {
      if (!(error instanceof DsError)) throw error;
      throw new InvalidArgumentError(`Expected ${error.expected}.`);
    }
  });
}

/** The value of a word. A word that is no number stays a text, which the option refuses. */
function wordValue(text: string, { syntax }: Any, previous: unknown): unknown {
  if (syntax === 'pairs') return { ...(previous as object | undefined), ...pairOf(text) };
  if (syntax === 'names') return text.split(',').map((name) => name.trim());
  if (syntax === 'bytes') return bytesOf(text);
  const isNumber = syntax === 'integer' || syntax === 'number';
  return isNumber && text.trim() !== '' && !Number.isNaN(Number(text)) ? Number(text) : text;
}

/** NAME=VALUE. A value may contain "=". */
function pairOf(text: string): Record<string, string> {
  const at = text.indexOf('=');
  if (at > 0 && at < text.length - 1) return { [text.slice(0, at)]: text.slice(at + 1) };
  throw new InvalidArgumentError('Expected NAME=VALUE.');
}

function bytesOf(text: string): number {
  const value = parseBytes(text);
  if (value !== null) return value;
  throw new InvalidArgumentError('Expected bytes, such as 4MiB or 500KB.');
}

/** The options of `declared` that commander has read into `flags`. */
export function fromFlags<D extends Declared>(declared: D, flags: object): Partial<Options<D>> {
  const given: Readonly<Record<string, unknown>> = { ...flags };
  const values = Object.entries(declared).flatMap(([name, { flag }]) => {
    const value = flag && given[new Option(flag).attributeName()];
    return value === undefined ? [] : [[name, value]];
  });
  return Object.fromEntries(values) as Partial<Options<D>>;
}
