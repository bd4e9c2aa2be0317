// @ts-check
// A model of your own: reads a short note and names the room where the work is to do.
import { nn } from '@ds/native';

/** @typedef {import('@ds/native').Tensor} Tensor */

export const ROOMS = ['kitchen', 'garden', 'workshop'];
export const LENGTH = 8; // Words of a note.
const BUCKETS = 1024; // Words share a bucket if their hashes are equal.

/** The words of a note as numbers; 0 fills the rest. @param {string} note */
export function encode(note) {
  const words = note.toLowerCase().match(/[a-z]+/g) ?? [];
  const hash = (/** @type {string} */ word) =>
    [...word].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % BUCKETS, 7);
  return Int32Array.from({ length: LENGTH }, (_, i) => (words[i] ? hash(words[i]) : 0));
}

export class Sorter extends nn.Module {
  embedding = new nn.Embedding(BUCKETS, 32);
  layers = [new nn.Linear(32, 32)]; // ZeRO shards each element of a list as one unit.
  head = new nn.Linear(32, ROOMS.length);
  loss = new nn.CrossEntropyLoss();

  /** words [B, LENGTH] to logits [B, 3]. @param {Tensor} words */
  logits(words) {
    let x = this.embedding.call(words).mean(1);
    for (const layer of this.layers) x = layer.call(x).tanh();
    return this.head.call(x);
  }

  /**
   * @override @param {import('@ds/native').Tensor} words @param {import('@ds/native').Tensor} rooms
   */
  forward(words, rooms) {
    return this.loss.call(this.logits(words), rooms.reshape([-1]));
  }
}
