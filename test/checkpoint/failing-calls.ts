// Fault injection: file calls of Node and of the addon that fail one after another, once or
// permanently.
import { DsError } from '../../lib/errors.js';
import { addon } from '../../lib/runtime/addon.js';

type Call = (...args: unknown[]) => unknown;

/** A function for file I/O, and how it fails. */
export interface FileCall {
  host: Record<string, Call>;
  name: string;
  fail: (args: unknown[]) => unknown;
}

/** The modules' own objects: namespaces cannot be patched. */
const promised = require('node:fs/promises') as Record<string, Call>;
const withCallbacks = require('node:fs') as Record<string, Call>;
const native = addon as unknown as Record<string, Call>;

/** Of node:fs/promises. */
export const promisedCalls = (...names: string[]): FileCall[] =>
  names.map((name) => ({ host: promised, name, fail: () => Promise.reject(nodeError(name)) }));

/** Of node:fs, with a callback. */
export const callbackCalls = (...names: string[]): FileCall[] =>
  names.map((name) => {
    const fail = (args: unknown[]): void => {
      const done = args.at(-1) as (error: Error) => void;
      setImmediate(() => done(nodeError(name)));
    };
    return { host: withCallbacks, name, fail };
  });

export const nativeCalls = (...names: string[]): FileCall[] =>
  names.map((name) => {
    const fail = (args: unknown[]) => Promise.reject(nativeError(name, args));
    return { host: native, name, fail };
  });

function nodeError(syscall: string): Error {
  const message = `EIO: i/o error, ${syscall}`;
  return Object.assign(new Error(message), { code: 'EIO', errno: -5, syscall });
}

/** With the properties of errors from csrc/io/file.cc. */
function nativeError(name: string, args: readonly unknown[]): Error {
  const op = `${name} ${args.find((arg) => typeof arg === 'string')}`;
  const got = 'Input/output error (errno 5)';
  return Object.assign(new Error(got), { code: 'DS_IO', op, expected: 'success', got, hint: '' });
}

export interface Outcome {
  /** How often the call was made. */
  calls: number;
  /** null if nothing was thrown. */
  thrown: unknown;
}

/** Runs `body` with the call of this number failing, and with `forGood` every later call too. */
async function withFault(
  { host, name, fail }: FileCall,
  { number, forGood }: { number: number; forGood: boolean },
  body: () => Promise<unknown>,
): Promise<Outcome> {
  let calls = 0;
  const real = host[name] as Call;
  host[name] = (...args: unknown[]) => {
    calls++;
    const fails = forGood ? calls >= number : calls === number;
    return fails ? fail(args) : real.apply(host, args);
  };
  try {
    return await body().then(
      () => ({ calls, thrown: null }),
      (thrown: unknown) => ({ calls, thrown }),
    );
  } finally {
    host[name] = real;
  }
}

export interface Fault {
  /** A description for messages. */
  place: string;
  call: string;
  /** null if `body` succeeded despite the fault. */
  error: DsError | null;
}

/**
 * Fails each of `calls` in turn, at every place where `body` makes it. Each outcome is a success,
 * DS_IO or DS_CHECKPOINT; `check` tests it. Returns the number of places.
 */
export async function everyFault(
  calls: readonly FileCall[],
  body: () => Promise<unknown>,
  check: (fault: Fault) => Promise<void>,
  { forGood = false } = {},
): Promise<number> {
  let places = 0;
  for (const call of calls) {
    for (let number = 1; ; ++number) {
      const { calls: made, thrown } = await withFault(call, { number, forGood }, body);
      const place = `${call.name} ${number}${forGood ? ' and later' : ''}`;
      const isTyped = thrown instanceof DsError && ['DS_IO', 'DS_CHECKPOINT'].includes(thrown.code);
      if (thrown !== null && !isTyped) throw new Error(`${place}: ${thrown}`, { cause: thrown });
      await check({ place, call: call.name, error: thrown as DsError | null });
      if (made < number) break;
      places++;
    }
  }
  return places;
}
