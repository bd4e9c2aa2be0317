// Tests tables of rotary angles: rows on demand, equal in tables of any length.
import { liveTensors, nn } from '../../lib/index.js';
import { RotaryTable } from '../../lib/models/rotary/rotary-table.js';
import { cpu } from '../../lib/runtime/device.js';
import { Tensor } from '../../lib/tensor/index.js';
import { quiet } from '../support/quiet.js';

const device = cpu();
const at = { length: 1, like: { dtype: 'f32', device } } as const;
const angles = { rotaryDim: 6, ropeTheta: 1e4 };

test('a table that lasts has 4096 rows or twice as many as needed, and keeps its memory', async () => {
  await quiet();
  const before = liveTensors();
  const table = new RotaryTable(angles, null, 2 ** 24);
  const first = table.lastingRows(1, at);
  const longer = table.lastingRows(5000, at);
  expect([first, longer].map(({ cos, sin }) => [cos.shape, sin.shape])).toEqual(
    [4096, 8192].map((rows) => [
      [rows, 3],
      [rows, 3],
    ]),
  );
  // Other rows leave it in its place.
  const rows = table.rowsAt(0, 6000, at);
  const again = table.lastingRows(4096, at);
  expect(again.cos.buffer).toBe(first.cos.buffer);
  expect(again.cos.toRaw()).toEqual(longer.cos.narrow(0, 0, 4096).toRaw());
  expect(rows.sin.toRaw()).toEqual(longer.sin.narrow(0, 0, 6000).toRaw());
  table.release();
  for (const { cos, sin } of [first, longer, rows, again])
    for (const one of [cos, sin]) one.dispose();
  await quiet();
  expect(liveTensors()).toBe(before);
});

test('a table ends at the longest sequence', () => {
  const table = new RotaryTable(angles, null, 100);
  expect(table.lastingRows(3, at).cos.shape).toEqual([100, 3]);
  table.release();
});

test('given positions of a maximum that no memory holds are refused with its key', () => {
  const model = new nn.models.Llama({
    vocabSize: 61,
    maxSeq: 2 ** 31 - 1,
    layers: 1,
    channels: 32,
    hidden: 48,
    heads: 4,
  });
  const tokens = Tensor.from(Int32Array.of(1, 2), { shape: [1, 2] });
  const positions = Tensor.from(Int32Array.of(1, 2), { shape: [1, 2] });
  expect(() => model.forward(tokens, null, { positions })).toThrow(
    /rotary angles: expected at most 268435456 positions, got 2147483647.*max_position_embeddings/,
  );
});
