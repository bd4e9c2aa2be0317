// Sampling rules and random key of one sequence.
import { requireInteger } from '../runtime/require-number.js';
import { nextRandom } from '../tensor/index.js';
import {
  readSampling,
  type SamplingOptions,
  type SamplingRules,
  type Vocabulary,
} from './sampling-options.js';

/** A 64-bit key of a sequence's noise, as two 32-bit words. */
type SeedWords = readonly [low: number, high: number];

const WORD = 2 ** 32;
/** Seeds are below 2^53. The sample index uses the bits above the upper 21 bits of the seed. */
const SAMPLES = 2 ** 10;
const SAMPLE_UNIT = 2 ** 21;

/**
 * Sampling rules and random key of one sequence. They stay with the sequence when its slot changes.
 */
export class SequenceSampling {
  readonly rules: SamplingRules;
  readonly seed: SeedWords;

  /**
   * `index` numbers the samples of a request. Throws DS_ARGUMENT with the name of the option,
   * prefixed by `op`.
   */
  constructor(op: string, options: SamplingOptions | undefined, vocabulary: Vocabulary, index = 0) {
    this.rules = readSampling(op, options, vocabulary);
    this.seed = seedWords(this.rules.seed, requireInteger(`${op} index`, index, 0));
  }
}

/**
 * Returns a key that is unique for each seed and sample index. Without a seed, the key comes from
 * the global generator and equals no seeded key.
 */
function seedWords(seed: number | null, index: number): SeedWords {
  if (seed === null) {
    const { seed: randomSeed, offset } = nextRandom();
    return [(randomSeed ^ Math.floor(randomSeed / WORD)) | 0, offset | 0x8000_0000 | 0];
  }
  const high = Math.floor(seed / WORD) + (index % SAMPLES) * SAMPLE_UNIT;
  return [seed | 0, high | 0];
}
