// Declares the options of `ds init`, `validate`, `elastic`, `env`, `io` and `watch`.

import { valueError } from '../runtime/input-errors.js';
import { boolean, declareOption, integer, integers, oneOf, string } from '../runtime/option.js';
import { keysOf } from '../runtime/typed-keys.js';
import type { Flags } from './declared-flags.js';
import { TEMPLATES } from './templates.js';

const JSON_OUTPUT = { json: boolean('print JSON', { flag: '--json' }) };

/** Options of `ds init`. */
export const INIT = {
  'Options:': {
    template: oneOf(keysOf(TEMPLATES))('kind of project', {
      default: 'chat',
      flag: '--template <name>',
    }),
  },
};

/** Options of `ds validate`. */
export const VALIDATE = {
  'Environment:': {
    worldSize: integer('number of ranks', { min: 1, default: 1, flag: '--world-size <n>' }),
    auto: string('values for "auto": lr, perDeviceBatchSize, ...', {
      flag: '--auto <name=value,...>',
    }),
    strict: boolean('refuse unknown keys', { flag: '--strict' }),
  },
  'Output:': {
    explain: boolean('print the origin of each value', { flag: '--explain' }),
    ...JSON_OUTPUT,
  },
};
export type ValidateFlags = Flags<typeof VALIDATE>;

/** Options of `ds elastic`. */
export const ELASTIC = {
  'Options:': {
    config: string('the same path, as in ds_elastic', { flag: '-c, --config <file>' }),
    worldSize: integer('data ranks; the output lists their batch sizes', {
      min: 1,
      flag: '-w, --world-size <n>',
    }),
    ...JSON_OUTPUT,
  },
};
export type ElasticFlags = Flags<typeof ELASTIC>;

/** Options of `ds env`. */
export const ENV = {
  'Options:': {
    ...JSON_OUTPUT,
    forgetProducts: boolean('remove the timed algorithms of matrix products', {
      flag: '--forget-products',
    }),
  },
};

/** Options of `ds io`. */
export const IO = {
  'Measurement:': {
    size: integer('bytes of the test file, such as 500MB or 2GiB', {
      min: 1,
      default: 2 ** 30,
      shown: '1GiB',
      flag: '--size <size>',
      syntax: 'bytes',
    }),
    block_size: integers('sizes of a disk request to try', {
      min: 1,
      shown: '1MiB,4MiB,16MiB',
      flag: '--block_size <list>',
      syntax: 'sizes',
    }),
    queue_depth: integers('numbers of requests at a time to try', {
      min: 1,
      default: [8, 32],
      shown: '8,32',
      flag: '--queue_depth <list>',
    }),
    threads: integers('numbers of threads for checksums to try', {
      min: 1,
      default: [1, 2, 4],
      shown: '1,2,4',
      flag: '--threads <list>',
    }),
  },
  'Output:': {
    parameters: integer('also print the cost of a step of a model of this size', {
      min: 1,
      flag: '--parameters <n>',
    }),
  },
};
export type IoFlags = Flags<typeof IO>;

/** Options of `ds watch`. */
export const WATCH = {
  'Options:': {
    port: declareOption(requirePortOrZero, 'port; 0 selects a free one', {
      shown: '6006, or a free one',
      flag: '--port <n>',
      syntax: 'integer',
    }),
    host: string('address to listen on', { default: '127.0.0.1', flag: '--host <address>' }),
  },
};
export type WatchFlags = Flags<typeof WATCH>;

function requirePortOrZero(op: string, port: number): number {
  if (Number.isInteger(port) && port >= 0 && port <= 65_535) return port;
  throw valueError(op, 'a port from 0 to 65535', port);
}
