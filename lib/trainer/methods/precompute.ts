// precomputeReference(): computes the reference's log-probabilities of all pairs before training.

import { createHash } from 'node:crypto';
import { readFileSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { CausalLM } from '../../models/causal-lm.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { makeFolderNow } from '../../runtime/make-folder.js';
import { notice } from '../../runtime/notice.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { errorMessage, systemError } from '../../runtime/system-error.js';
import { writeWhole } from '../../runtime/whole-file.js';
import { noGrad, scope } from '../../tensor/index.js';
import { collatePairs, PairDataset, type PairSample } from '../../text/index.js';

/** Options of precomputeReference(). */
export interface PrecomputeOptions {
  /** Number of pairs per forward pass. Default: 8. */
  batchSize?: number;
  /** Token that fills shorter rows. Default: 0. */
  pad?: number;
  /**
   * File that stores the numbers for a later run with the same pairs and weights. Default: none.
   */
  cache?: string;
}

type PairNumbers = [chosen: number, rejected: number][];

/** First bytes of a cache file. A file without them is not overwritten. */
const CACHE_HEADER = '{"about":"log-probabilities by a reference","key":';

/**
 * Returns `pairs` with log-probabilities of `reference`, computed on its device. dpo() then needs
 * no reference. Throws DS_ARGUMENT for invalid options, or if the cache path is another file.
 * Throws DS_IO if the cache cannot be read or its folder cannot be created. If the cache cannot be
 * written, prints a notice.
 */
export function precomputeReference(
  pairs: PairDataset,
  reference: CausalLM,
  given: PrecomputeOptions = {},
): PairDataset {
  const op = 'precomputeReference';
  const { batchSize = 8, pad = 0, cache } = readOptions(op, given, namesOf.PrecomputeOptions);
  requireInteger(`${op} batchSize`, batchSize, 1);
  if (!(pairs instanceof PairDataset)) throw valueError(`${op} pairs`, 'a PairDataset', pairs);
  if (!(reference instanceof CausalLM)) {
    throw valueError(`${op} reference`, 'a language model of nn.models', reference);
  }
  const samples = Array.from({ length: pairs.length }, (_, i) => pairs.get(i));
  const key = cache === undefined ? '' : computeKey(samples, reference);
  const cached = cache === undefined ? null : readCache(cache, key);
  if (cached?.length === pairs.length) return pairs.withReference(cached);
  const numbers = computeSamples(samples, reference, { batchSize, pad });
  if (cache !== undefined)
    writeCache(
      cache,
      `${CACHE_HEADER}${JSON.stringify(key)},"numbers":${JSON.stringify(numbers)}}`,
    );
  return pairs.withReference(numbers);
}

/**
 * Writes a cache file. If that fails, for example because the disk is full, prints a notice instead
 * of throwing, because the numbers would be lost.
 */
function writeCache(cache: string, text: string): void {
  try {
    writeWhole(cache, (file) => void writeAll(file, Buffer.from(text)));
  } catch (error) {
    notice(`precomputeReference cache ${cache}: not written, ${errorMessage(error)}.`);
  }
}

/** Writes all bytes. One call may write only some of them, for example if the disk becomes full. */
function writeAll(file: number, bytes: Uint8Array): void {
  for (let at = 0; at < bytes.length; ) at += writeSync(file, bytes, at);
}

function computeSamples(
  samples: readonly PairSample[],
  reference: CausalLM,
  { batchSize, pad }: { batchSize: number; pad: number },
): PairNumbers {
  const { training } = reference;
  reference.eval();
  try {
    return computeNumbers(samples, reference, batchSize, pad);
  } finally {
    reference.train(training);
  }
}

function computeNumbers(
  samples: readonly PairSample[],
  reference: CausalLM,
  batchSize: number,
  pad: number,
): PairNumbers {
  const collate = collatePairs(pad);
  const numbers: PairNumbers = [];
  for (let from = 0; from < samples.length; from += batchSize) {
    const batch = samples
      .slice(from, from + batchSize)
      .map((sample) => ({ ...sample, reference: null }));
    const sums = scope(() => {
      const { ids, targets } = collate(batch, reference.computesIn.device);
      const rowSums = noGrad(() => reference.call(ids, targets, { loss: { rows: true } }));
      return rowSums.toArray().map(Number);
    });
    for (const i of batch.keys()) {
      numbers.push([required(sums[i]), required(sums[i + batch.length])]);
    }
  }
  return numbers;
}

/** Returns a hash of the pairs and of the weights. */
function computeKey(samples: readonly PairSample[], reference: CausalLM): string {
  const hash = createHash('sha256');
  for (const { chosen, rejected, prompt } of samples) {
    hash.update(`${prompt} ${chosen.length} ${rejected.length} `).update(chosen).update(rejected);
  }
  for (const [name, parameter] of reference.namedParameters()) {
    const values = parameter.toRaw();
    const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    hash.update(`${name} ${parameter.dtype} ${parameter.shape.join()} `).update(bytes);
  }
  return hash.digest('hex');
}

/**
 * Returns the numbers of the cache file; null if it is missing or has another key. Creates its
 * folder.
 */
function readCache(cache: string, key: string): PairNumbers | null {
  const text = readCacheText(cache);
  if (text === null) return null;
  if (!text.startsWith(CACHE_HEADER.slice(0, text.length))) {
    throw argumentError('precomputeReference cache', 'a new path, or a file that it wrote', cache);
  }
  try {
    const cached = JSON.parse(text) as { key?: string; numbers?: PairNumbers };
    return cached.key === key ? (cached.numbers ?? null) : null;
  } catch {
    return null; // The file is damaged: the caller computes the numbers again.
  }
}

/**
 * Returns the text of the cache file; null if it does not exist. Throws DS_ARGUMENT if the path is
 * not a file, DS_IO.
 */
function readCacheText(cache: string): string | null {
  try {
    const stats = statSync(cache, { throwIfNoEntry: false });
    if (stats?.isFile()) return readFileSync(cache, 'utf8');
    if (!stats) {
      makeFolderNow(dirname(cache));
      return null;
    }
  } catch (error) {
    throw systemError(error) ?? error;
  }
  throw argumentError('precomputeReference cache', 'the path of a file', cache);
}
