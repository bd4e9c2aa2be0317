// Values that an invariant guarantees: they are returned, and a broken invariant throws.
import { defined, leading, required } from '../../lib/runtime/required.js';

const missing = expect.objectContaining({ code: 'DS_INTERNAL', got: 'none' });

test('required() returns present values, also falsy ones', () => {
  expect([0, '', false, Number.NaN].map((value) => required(value))).toEqual([
    0,
    '',
    false,
    Number.NaN,
  ]);
});

test.each([undefined, null])('required() throws for %s', (value) => {
  expect(() => required(value)).toThrow(missing);
});

test('defined() returns null, and throws for undefined', () => {
  expect(defined(null)).toBeNull();
  expect(() => defined(undefined)).toThrow(missing);
});

test('leading() returns lists that are long enough', () => {
  const [rows, columns] = leading([2, 3, 4], 2);
  expect([rows, columns]).toEqual([2, 3]);
  expect(() => leading([2], 2)).toThrow(missing);
});
