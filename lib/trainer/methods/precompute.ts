// precomputeReference(): log-probabilities by the reference once, before training.

import { createHash } from 'node:crypto';
import { readFileSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { CausalLM } from '../../models/causal-lm.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { makeFolderNow } from '../../runtime/make-folder.js';
import { notice } from '../../runtime/notice.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { errorMessage, systemError } from '../../runtime/system-error.js';
import { writeWhole } from '../../runtime/whole-file.js';
import { noGrad, scope } from '../../tensor/index.js';
import { collatePairs, PairDataset, type PairSample } from '../../text/index.js';

/** Options of precomputeReference(). */
export interface PrecomputeOptions {
  /** Pairs of a forward. Default: 8. */
  batchSize?: number;
  /** Id that fills rows. Default: 0. */
  pad?: number;
  /** A file that keeps the numbers for the same pairs and weights. Default: none. */
  cache?: string;
}

const OPTIONS: OptionNames<PrecomputeOptions> = { batchSize: true, pad: true, cache: true };

type Numbers = [chosen: number, rejected: number][];

/** The beginning of a cache: another file of this name is not overwritten. */
const HEAD = '{"about":"log-probabilities by a reference","key":';

/**
 * Returns `pairs` with log-probabilities by `reference`, a model on the device where it computes.
 * dpo() then needs no reference. Throws DS_ARGUMENT, also for a cache that is another file; DS_IO
 * for a cache without a folder. If the numbers cannot be written, a notice says so.
 */
export function precomputeReference(
  pairs: PairDataset,
  reference: CausalLM,
  given: PrecomputeOptions = {},
): PairDataset {
  const op = 'precomputeReference';
  const { batchSize = 8, pad = 0, cache } = readOptions(op, given, OPTIONS);
  requireInteger(`${op} batchSize`, batchSize, 1);
  if (!(pairs instanceof PairDataset)) throw valueError(`${op} pairs`, 'a PairDataset', pairs);
  if (!(reference instanceof CausalLM)) {
    throw valueError(`${op} reference`, 'a language model of nn.models', reference);
  }
  const samples = Array.from({ length: pairs.length }, (_, i) => pairs.get(i));
  const key = cache === undefined ? '' : keyOf(samples, reference);
  const kept = cache === undefined ? null : keptIn(cache, key);
  if (kept?.length === pairs.length) return pairs.withReference(kept);
  const numbers = computeSamples(samples, reference, { batchSize, pad });
  if (cache !== undefined)
    keep(cache, `${HEAD}${JSON.stringify(key)},"numbers":${JSON.stringify(numbers)}}`);
  return pairs.withReference(numbers);
}

/** Writes a cache. A full disk must not cost the numbers, so it is a notice. */
function keep(cache: string, text: string): void {
  try {
    writeWhole(cache, (file) => void writeAll(file, Buffer.from(text)));
  } catch (error) {
    notice(`precomputeReference cache ${cache}: not written, ${errorMessage(error)}.`);
  }
}

/** A write to a file may end early, for example on a disk that becomes full. */
function writeAll(file: number, bytes: Uint8Array): void {
  for (let at = 0; at < bytes.length; ) at += writeSync(file, bytes, at);
}

function computeSamples(
  samples: readonly PairSample[],
  reference: CausalLM,
  { batchSize, pad }: { batchSize: number; pad: number },
): Numbers {
  const { training } = reference;
  reference.eval();
  try {
    return sumsOf(samples, reference, batchSize, pad);
  } finally {
    reference.train(training);
  }
}

function sumsOf(
  samples: readonly PairSample[],
  reference: CausalLM,
  batchSize: number,
  pad: number,
): Numbers {
  const collate = collatePairs(pad);
  const numbers: Numbers = [];
  for (let from = 0; from < samples.length; from += batchSize) {
    const some = samples
      .slice(from, from + batchSize)
      .map((sample) => ({ ...sample, reference: null }));
    const sums = scope(() => {
      const { ids, targets } = collate(some, reference.computesIn.device);
      const found = noGrad(() => reference.call(ids, targets, { loss: { rows: true } }));
      return found.toArray().map(Number);
    });
    for (const i of some.keys()) {
      numbers.push([required(sums[i]), required(sums[i + some.length])]);
    }
  }
  return numbers;
}

/** A hash of the pairs and the weights. */
function keyOf(samples: readonly PairSample[], reference: CausalLM): string {
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

/** The numbers of a cache with `key`; null without such a cache. Makes its folder. */
function keptIn(cache: string, key: string): Numbers | null {
  const text = textOf(cache);
  if (text === null) return null;
  if (!text.startsWith(HEAD.slice(0, text.length))) {
    throw argumentError('precomputeReference cache', 'a new path, or a file that it wrote', cache);
  }
  try {
    const kept = JSON.parse(text) as { key?: string; numbers?: Numbers };
    return kept.key === key ? (kept.numbers ?? null) : null;
  } catch {
    return null; // The numbers of a damaged cache are computed again.
  }
}

/** The text of a regular file; null if the path is free. Throws DS_ARGUMENT, DS_IO. */
function textOf(cache: string): string | null {
  try {
    const found = statSync(cache, { throwIfNoEntry: false });
    if (found?.isFile()) return readFileSync(cache, 'utf8');
    if (!found) {
      makeFolderNow(dirname(cache));
      return null;
    }
  } catch (error) {
    throw systemError(error) ?? error;
  }
  throw argumentError('precomputeReference cache', 'the path of a file', cache);
}
