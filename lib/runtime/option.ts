// Declares options. A declaration gives the type, the reader, the default, the argument of the
// command and its help.

import { valueError } from './input-errors.js';
import { type OtherNames, readOptions } from './options.js';
import { requireOneOf, requireType } from './require-type.js';

/** Syntax of an option on the command line. */
export type Syntax =
  | 'text'
  | 'integer'
  | 'number'
  | 'switch' // without a value: true; values: true, false, yes, no, 1, 0
  | 'texts' // all following words; of a launcher's command: one, and the option is repeatable
  | 'integers' // of a launcher's command: joined by commas
  | 'numbers'
  | 'record' // JSON
  | 'text or record' // a path, or JSON
  | 'text or switch'
  | 'integer or switch'
  | 'bytes' // such as 4MiB
  | 'sizes' // bytes, joined by commas
  | 'names' // joined by commas
  | 'pairs' // NAME=VALUE, repeatable
  | 'pair list'; // NAME=VALUE, joined by commas

/** Names, default and texts of an option. */
interface About<Default, Flag extends string, Required extends boolean> extends OtherNames {
  /** Value of an absent option. */
  default?: Default;
  /** The default in words, for the documentation, if no single value describes it. */
  shown?: string;
  /** Argument of the command that sets this option. */
  flag?: Flag;
  /** Syntax on the command line. Default: that of the declaring function. */
  syntax?: Syntax;
  /** The allowed values, if the option takes one of several texts. */
  values?: readonly string[];
  /** Options that a command refuses together with this option. */
  conflicts?: readonly string[];
  /** Whether an absent option is an error. */
  required?: Required;
}

/** A declared option. Callers give a value of `In`; the reader returns a value of `Out`. */
export interface Option<
  In,
  Out = In,
  Flag extends string = string,
  Required extends boolean = boolean,
> extends About<unknown, Flag, Required> {
  /** The effect in a phrase of Markdown, for the help of a command and the table of a page. */
  readonly help: string;
  /** Whether an absent option is an error. */
  readonly required: Required;
  /** Returns the checked value. Throws DS_ARGUMENT with `op`. */
  read(op: string, value: unknown): Out;
  /** Returns the value of an absent option. Throws DS_ARGUMENT if the option is required. */
  absent(op: string): Out;
  /** Carries the type `In`; no option has this member at run time. */
  readonly given?: In;
}

/** Declarations by the names of the options. */
export type Declared = Readonly<Record<string, Option<unknown, unknown>>>;

type InputOf<O> = O extends Option<infer In, unknown> ? In : never;

/** The values that a caller gives. A member has the comment of its declaration. */
export type Options<D> = {
  [Name in keyof D as D[Name] extends { required: true } ? Name : never]: InputOf<D[Name]>;
} & {
  [Name in keyof D as D[Name] extends { required: true } ? never : Name]?: InputOf<D[Name]>;
};

/** The values that a reader returns, with defaults. */
export type Settings<D> = {
  [Name in keyof D]: D[Name] extends Option<unknown, infer Out> ? Out : never;
};

/** The values of a command line, by the names of the arguments. */
export type Arguments<D> = {
  [Name in keyof D as D[Name] extends Option<unknown, unknown, infer Flag>
    ? Flag
    : never]?: InputOf<D[Name]>;
};

/**
 * Returns `given` with defaults. Throws DS_ARGUMENT for an unknown name, and for a value that its
 * option refuses. In messages, `separator` joins `op` and the name of an option.
 */
export function readDeclared<D extends Declared>(
  op: string,
  given: object | undefined,
  declared: D,
  separator = ' ',
): Settings<D> {
  const options: Record<string, unknown> = { ...readOptions(op, given, declared) };
  const read: Record<string, unknown> = {};
  for (const [name, option] of Object.entries(declared)) {
    const place = `${op}${separator}${name}`;
    const value = options[name];
    const isAbsent = value === undefined || (value === null && option.default === null);
    read[name] = isAbsent ? option.absent(place) : option.read(place, value);
  }
  return read as Settings<D>;
}

/**
 * Returns the default in Markdown: `shown`, or the value as JSON. Returns null without a default.
 */
export function defaultText({ shown, default: value }: Option<unknown, unknown>): string | null {
  if (shown !== undefined || value === undefined || value === null) return shown ?? null;
  return typeof value === 'number' && value > 0 && value < 1e-3
    ? value.toExponential()
    : JSON.stringify(value).replaceAll(',', ', ');
}

/** Returns Markdown as plain text: the texts of links and code. */
export const plainText = (markdown: string): string =>
  markdown.replaceAll(/\[([^\]]+)\]\([^)]*\)/g, '$1').replaceAll('`', '');

type Read<Value, Default, Required> = Value | (Required extends true ? never : Default);

/** Declares an option with the text `help`. `Limits` adds members to `about`. */
type Declare<In, Limits> = <
  const Default = undefined,
  const Flag extends string = never,
  const Required extends boolean = false,
>(
  help: string,
  about?: About<Default, Flag, Required> & Limits,
) => Option<In, Read<In, Default, Required>, Flag, Required>;

/** Declares an option that `read` checks and converts. JavaScript callers may give any value. */
export function declareOption<
  In,
  Out,
  const Default = undefined,
  const Flag extends string = never,
  const Required extends boolean = false,
>(
  read: (op: string, value: In) => Out,
  help: string,
  about: About<Default, Flag, Required> = {},
): Option<In, Read<Out, Default, Required>, Flag, Required> {
  type Result = Read<Out, Default, Required>;
  const { required = false as Required } = about;
  const option = { ...about, help, required, read: read as (op: string, value: unknown) => Out };
  const absent = (op: string): Result =>
    required ? option.read(op, undefined) : (about.default as Result);
  return { ...option, absent };
}

/** Limits of a number. */
interface Range {
  /** Lowest allowed number. */
  min?: number;
  /** Highest allowed number. */
  max?: number;
  /** Exclusive lower limit. */
  above?: number;
  /** Exclusive upper limit. */
  below?: number;
  /** Whether a number that overflows or underflows in f32 is an error. */
  f32?: boolean;
  /** The fix in the error for a number out of range. */
  fix?: string;
}

/** Declares a finite number. */
export const number: Declare<number, Range> = (help, about = {}) =>
  declareOption((op, value: number) => readNumber(op, value, about, 'a finite number'), help, {
    syntax: 'number',
    ...about,
  });

/** Declares a safe integer. */
export const integer: Declare<number, Range> = (help, about = {}) =>
  declareOption((op, value: number) => readNumber(op, value, about, 'an integer'), help, {
    syntax: 'integer',
    ...about,
  });

function readNumber(op: string, value: unknown, range: Range, noun: string): number {
  const isNumber = noun === 'an integer' ? Number.isSafeInteger : Number.isFinite;
  if (!isNumber(value) || !isWithin(value as number, range)) {
    throw valueError(op, `${noun}${boundsOf(range)}`, value, range.fix);
  }
  const kept = Math.fround(value as number);
  const isKept = Number.isFinite(kept) && (value === 0) === (kept === 0);
  if (range.f32 && !isKept) throw valueError(op, 'a number in the range of f32', value);
  return value as number;
}

const { POSITIVE_INFINITY: MOST, NEGATIVE_INFINITY: LEAST } = Number;

const isWithin = (value: number, { min = LEAST, max = MOST, above = LEAST, below = MOST }: Range) =>
  value >= min && value <= max && value > above && value < below;

/** Returns the bounds as text: " from 0 to 1", or " of at least 0 and below 1". */
function boundsOf({ min, max, above, below }: Range): string {
  if (min !== undefined && max !== undefined) return ` from ${min} to ${max}`;
  const bounds = Object.entries({ 'of at least': min, above, 'at most': max, below });
  const limits = bounds.filter(([, bound]) => bound !== undefined);
  return limits.length > 0 ? ` ${limits.map((item) => item.join(' ')).join(' and ')}` : '';
}

type NoLimits = Record<never, never>;

/** Declares a switch. */
export const boolean: Declare<boolean, NoLimits> = (help, about) =>
  declareOption((op, value: boolean) => requireType(op, value, 'boolean'), help, {
    syntax: 'switch',
    ...about,
  });

/** Declares a text. */
export const string: Declare<string, NoLimits> = (help, about) =>
  declareOption((op, value: string) => requireType(op, value, 'string'), help, {
    syntax: 'text',
    ...about,
  });

/** Declares a list of texts. */
export const texts: Declare<readonly string[], NoLimits> = (help, about) =>
  declareOption((op, values: readonly string[]) => listOf(op, values, textOf), help, {
    syntax: 'texts',
    ...about,
  });

/** Declares a list of safe integers. */
export const integers: Declare<readonly number[], Range> = (help, about = {}) => {
  const read = (op: string, value: number) => readNumber(op, value, about, 'an integer');
  return declareOption((op, values: readonly number[]) => listOf(op, values, read), help, {
    syntax: 'integers',
    ...about,
  });
};

const textOf = (op: string, value: string): string => requireType(op, value, 'string');

function listOf<Value>(
  op: string,
  values: readonly Value[],
  read: (op: string, value: Value) => Value,
): readonly Value[] {
  if (!Array.isArray(values)) throw valueError(op, 'a list', values);
  return values.map((value: Value, i) => read(`${op}[${i}]`, value));
}

/** Declares one of the texts `values`. */
export function oneOf<const Value extends string>(values: readonly Value[]) {
  const declare: Declare<Value, NoLimits> = (help, about) =>
    declareOption((op, value: Value) => requireOneOf(op, value, values), help, {
      syntax: 'text',
      values,
      ...about,
    });
  return declare;
}

/** Declares a function of the type `Call`. */
export const callback = <Call>(help: string, about?: About<undefined, never, false>) =>
  declareOption(
    (op: string, value: Call) => {
      requireType(op, value, 'function');
      return value;
    },
    help,
    about,
  );

/**
 * Declares an object of options of the type `In`. If it is absent, the defaults of `fields` apply.
 */
export const object =
  <In>() =>
  <D extends Declared>(fields: D, help = ''): Option<In, Settings<D>, never, false> => {
    const read = (op: string, value?: unknown) => readDeclared(op, value as object, fields, '.');
    return { help, fields, required: false, read, absent: (op) => read(op) };
  };
