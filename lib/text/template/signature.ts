// Signatures of functions, and the assignment of call arguments to parameters.
import { typeError } from './fault.js';
import { type Keywords, Native, NO_KEYWORDS, type Value } from './values.js';

/** An argument, or undefined if the call omits it. */
export type Argument = Value | undefined;

/** An argument, or its default. */
export const orDefault = (argument: Argument, otherwise: Value): Value =>
  argument === undefined ? otherwise : argument;

interface Signature {
  names: readonly string[];
  required: number;
  /** Number of positional-only parameters. */
  positional: number;
  takesRest: boolean;
  takesKeywords: boolean;
}

/**
 * Parses a signature such as "text width? / *args **keywords". A parameter with "?" is optional.
 */
function parseSignature(text: string): Signature {
  const parts = text.split(' ').filter((part) => part !== '');
  const parameterNames = parts.filter((part) => part !== '/' && !part.startsWith('*'));
  const slash = parts.indexOf('/');
  return {
    names: parameterNames.map((name) => name.replace('?', '')),
    required: parameterNames.filter((name) => !name.endsWith('?')).length,
    positional: Math.max(0, slash),
    takesRest: parts.includes('*args'),
    takesKeywords: parts.includes('**keywords'),
  };
}

/**
 * Body of a function. Its arguments are the parameters in order, then further arguments and
 * keywords.
 */
// biome-ignore lint/suspicious/noExplicitAny: each function has its own parameters.
export type Body = (...args: any[]) => Value;

/** A function with Python's calling convention. */
export type BoundFunction = (args: readonly Value[], keywords: Keywords) => Value;

/** Returns a function that checks the arguments of each call. Throws TypeError. */
export function bindFunction(name: string, parameters: string, body: Body): BoundFunction {
  const signature = parseSignature(parameters);
  const { names, takesRest, takesKeywords } = signature;
  return (args, keywords) => {
    if (keywords.size === 0 && !takesRest && !takesKeywords) {
      requireCount(name, signature, args.length, args.length);
      return body(...args);
    }
    const values: Argument[] = names.map((_, i) => args[i]);
    const others = matchKeywords(name, signature, values, args.length, keywords);
    const count = values.filter((value, i) => i < signature.required && value !== undefined).length;
    requireCount(name, signature, args.length, count);
    if (takesRest) values.push(args.slice(names.length));
    return takesKeywords ? body(...values, others) : body(...values);
  };
}

/** Assigns keywords to their parameters, and returns the others. */
function matchKeywords(
  name: string,
  { names, positional, takesKeywords }: Signature,
  values: Argument[],
  given: number,
  keywords: Keywords,
): Keywords {
  if (keywords.size === 0) return NO_KEYWORDS;
  const others = new Map<string, Value>();
  for (const [key, value] of keywords) {
    const at = names.indexOf(key);
    if (at >= positional && at >= given) values[at] = value;
    else if (at >= positional && at >= 0) {
      throw typeError(`${name}() got multiple values for argument '${key}'`);
    } else if (takesKeywords) others.set(key, value);
    else throw typeError(`${name}() got an unexpected keyword argument '${key}'`);
  }
  return others;
}

function requireCount(
  name: string,
  { names, required, takesRest }: Signature,
  given: number,
  count: number,
): void {
  if (given > names.length && !takesRest) {
    throw typeError(`${name}() takes at most ${names.length} arguments (${given} given)`);
  }
  if (count < required) {
    const missing = names.slice(0, required).map((name) => `'${name}'`);
    throw typeError(`${name}() missing required arguments: ${missing.join(', ')}`);
  }
}

/** Creates a function that templates can call. */
export const defineNative = (name: string, parameters: string, body: Body): Native =>
  new Native(name, bindFunction(name, parameters, body));
