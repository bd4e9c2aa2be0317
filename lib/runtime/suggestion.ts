// "Did you mean": finds the known word closest to a mistyped one.
import { required } from './required.js';

/** Largest number of parts of a key that are compared. */
const MAX_WORDS = 16;

/**
 * Returns a candidate that resembles `word`, or "". It tries three rules in this order:
 * 1. the nearest candidate, within two edits and within a third of the length of `word`
 * 2. the only candidate that contains all words of `word`: "warmup_num_steps" for "warmup_steps"
 * 3. the nearest candidate, within a third of the length of `word`
 */
export function closest(word: string, candidates: readonly string[]): string {
  const lower = word.toLowerCase();
  const loose = Math.floor(word.length / 3);
  const distances = candidates.map((candidate) => {
    const isFar = Math.abs(candidate.length - word.length) > loose;
    return isFar ? Number.POSITIVE_INFINITY : editDistance(lower, candidate.toLowerCase());
  });
  const min = Math.min(...distances);
  const nearest = candidates[distances.indexOf(min)] ?? '';
  if (min <= Math.min(2, loose)) return nearest;
  const parts = lower.split('_');
  if (parts.length > MAX_WORDS) return '';
  const longer = candidates.filter((candidate) => {
    const words = candidate.toLowerCase().split('_');
    return parts.length > 1 && parts.every((part) => words.includes(part));
  });
  if (longer.length === 1) return required(longer[0]);
  return min <= loose ? nearest : '';
}

/**
 * Returns the number of insertions, deletions, substitutions and swaps of neighbors from `a` to `b`
 * (Damerau 1964, each part changed once).
 */
function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; ++i) {
    const next = [i];
    for (let j = 1; j <= b.length; ++j) {
      const isSame = a[i - 1] === b[j - 1];
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      next.push(
        Math.min(
          required(row[j - 1]) + (isSame ? 0 : 1),
          required(row[j]) + 1,
          required(next[j - 1]) + 1,
          isSwap ? required(before[j - 2]) + 1 : Number.POSITIVE_INFINITY,
        ),
      );
    }
    before = row;
    row = next;
  }
  return required(row[b.length]);
}
