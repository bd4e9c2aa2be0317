// Tests the inputs of a forward: casts to 16 bits, and the samples of a rank.
import { resolveConfig } from '../../lib/config/index.js';
import { inputCastOf, requireInputs, sampleShareOf } from '../../lib/engine/step/inputs.js';
import { type DsConfig, Tensor } from '../../lib/index.js';
import { scope } from '../../lib/tensor/index.js';
import { thrownBy } from '../support/refusal.js';

const castOf = (more: DsConfig) =>
  inputCastOf(resolveConfig({ train_micro_batch_size_per_gpu: 1, ...more }, { worldSize: 1 }));

test.each<[more: DsConfig, dtype: string]>([
  [{}, 'f32'],
  [{ fp16: { enabled: true } }, 'f32'],
  [{ fp16: { enabled: true, auto_cast: true } }, 'f16'],
  [{ fp16: { enabled: false, auto_cast: true } }, 'f32'],
  [{ bf16: { enabled: true } }, 'f32'],
  [{ bf16: { enabled: true }, torch_autocast: { enabled: true, dtype: 'bfloat16' } }, 'bf16'],
] as never)('%j casts floats to %s', (more, dtype) => {
  scope(() => {
    const [x] = castOf(more)([Tensor.from([1.5, 2])]) as [Tensor];
    expect([x.dtype, x.to('f32').toArray()]).toEqual([dtype, [1.5, 2]]);
  });
});

test('casts reach tensors in lists and plain objects, and leave the rest', () => {
  scope(() => {
    const cast = castOf({ fp16: { enabled: true, auto_cast: true } });
    const of = () => Tensor.from([1, 2]);
    const tokens = Tensor.from(Int32Array.of(1, 2));
    const map = new Map([['a', of()]]);
    const [list, object, ...rest] = cast([
      [of(), [of()], 'text'],
      { a: of(), b: { c: [of(), 3] } },
      tokens,
      map,
      null,
      7,
    ]) as [[Tensor, [Tensor], string], { a: Tensor; b: { c: [Tensor, number] } }, ...unknown[]];
    expect([list[0].dtype, list[1][0].dtype, list[2]]).toEqual(['f16', 'f16', 'text']);
    expect([object.a.dtype, object.b.c[0].dtype, object.b.c[1]]).toEqual(['f16', 'f16', 3]);
    expect(rest.map((item, i) => item === [tokens, map, null, 7][i])).toEqual([
      true,
      true,
      true,
      true,
    ]);
    expect((map.get('a') as Tensor).dtype).toBe('f32');
  });
});

test('the inputs that a method makes are a list', () => {
  const result = [1, 2];
  expect(requireInputs('curriculum', result)).toBe(result);
  expect(thrownBy(() => requireInputs('curriculum', { 0: 1 }))).toMatchObject({
    code: 'DS_ARGUMENT',
    op: 'curriculum()',
    expected: 'the inputs of forward(), a list',
  });
});

test('a rank of several has a share of the samples of the first tensor', () => {
  scope(() => {
    const x = Tensor.from(new Float32Array(12), { shape: [6, 2] });
    const share = (inputs: unknown[], size: number) => sampleShareOf(inputs, { rank: 0, size });
    expect(share([x], 1)).toBeNull();
    expect(share([null, { x }], 2)).toEqual({ samples: 6, rank: 0, ranks: 2 });
    expect(share(['text'], 2)).toBeNull();
    expect(share([Tensor.from(1 as never)], 2)).toBeNull();
    expect(share([Tensor.from(new Float32Array(0))], 2)).toBeNull();
  });
});
