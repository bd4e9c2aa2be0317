// Tests that PieceQueue delivers pieces in order, to a waiting reader or a later one.
import { PieceQueue } from '../../lib/inference/piece-queue.js';

const queue = (): PieceQueue<number> => new PieceQueue(() => {});

test('concurrent readers all get their pieces, in order', async () => {
  const pieces = queue();
  const reads = [pieces.next(), pieces.next(), pieces.next()];
  pieces.push(1);
  pieces.push(2);
  pieces.end();
  await expect(Promise.all(reads)).resolves.toEqual([
    { value: 1, done: false },
    { value: 2, done: false },
    { value: undefined, done: true },
  ]);
});

test('pushed pieces are delivered before a failure, then the end', async () => {
  const pieces = queue();
  pieces.push(1);
  pieces.fail(new Error('no more'));
  pieces.push(2);
  await expect(pieces.next()).resolves.toEqual({ value: 1, done: false });
  await expect(pieces.next()).rejects.toThrow('no more');
  await expect(pieces.next()).resolves.toEqual({ value: undefined, done: true });
});
