// Attention within documents, windows and layouts of blocks against the formulas.
import type { DType } from '../../../lib/runtime/dtype.js';
import { attentions } from './attention.js';
import { type Filter, keepAll, type Sizes } from './attention-reference.js';
import type { MatrixCase } from './harness.js';
import { floating } from './layouts.js';

/** Documents and windows smaller than tiles, larger, cut by them, and without tokens. */
function reachedAttentions(): MatrixCase[] {
  const list: Sizes[] = [];
  const add = (
    [b, h, hk]: readonly [number, number, number],
    [t, s, d]: readonly [number, number, number],
    filter: Omit<Filter, 'title'>,
    both = true,
  ): void => {
    const named = Object.entries(filter).map(([name, what]) =>
      typeof what === 'object' && !Array.isArray(what) ? name : `${name} ${what}`,
    );
    const titled = { ...filter, title: named.join(', ') };
    for (const causal of both ? [true, false] : [true])
      list.push({ b, h, hk, t, s, d, causal, filter: titled });
  };
  for (const documents of ['packed', 'left', 'right', 'scattered'] as const)
    add([2, 1, 1], [131, 131, 4], { documents });
  add([1, 1, 1], [300, 300, 8], { documents: 'packed' }, false);
  add([1, 2, 1], [67, 150, 40], { documents: 'packed' });
  add([1, 1, 1], [129, 129, 64], { documents: 'packed' }, false);
  add([1, 1, 1], [67, 67, 128], { documents: 'packed' });
  add([2, 1, 1], [65, 65, 96], { documents: 'left' });
  add([2, 1, 1], [70, 33, 24], { documents: 'packed' });
  add([2, 2, 2], [33, 33, 7], { documents: 'none' });
  add([1, 1, 1], [35, 35, 136], { documents: 'packed', window: 9 });
  for (const window of [1, 5, 33, 64, 130]) add([1, 2, 1], [131, 131, 4], { window });
  add([1, 1, 1], [300, 300, 33], { window: 50 }, false);
  add([1, 1, 1], [131, 131, 100], { window: 40 }, false);
  add([2, 1, 1], [20, 150, 80], { window: 37 });
  add([2, 1, 1], [100, 20, 16], { window: 8 });
  add([2, 1, 1], [140, 140, 40], { documents: 'packed', window: 21 });
  add([2, 1, 1], [140, 140, 8], { documents: 'right', lengths: [140, 90] });
  add([2, 1, 1], [19, 190, 48], { window: 100, lengths: [190, 75] });
  add([2, 1, 1], [0, 5, 8], { documents: 'packed', window: 2 });
  add([0, 1, 1], [5, 5, 8], { documents: 'packed' });
  const dropout = { ...keepAll, p: 0.3, seed: 11, offset: 5 };
  add([2, 2, 1], [67, 67, 64], { documents: 'packed', dropout });
  add([1, 1, 1], [35, 133, 128], { documents: 'left', window: 30, dropout }, false);
  add([2, 1, 1], [70, 70, 40], { documents: 'scattered', keyMask: 'f32', window: 25 });
  const mask = { as: 'bool', repeats: [0, 1] } as const;
  add([2, 1, 1], [70, 70, 96], { documents: 'packed', mask }, false);
  // f16 and bf16 share their kernels, so f16 runs only the larger widths.
  const apart = (dtype: DType, { d }: Sizes): boolean => dtype !== 'f16' || d >= 64;
  return floating.flatMap((dtype) =>
    list.filter((z) => apart(dtype, z)).flatMap((z) => attentions(dtype, z, 'packed')),
  );
}

/**
 * Layouts with blocks smaller and larger than tiles, per head and shared, in combination with the
 * other masks.
 */
function laidAttentions(): MatrixCase[] {
  const list: Sizes[] = [];
  const add = (
    [b, h, hk]: readonly [number, number, number],
    [t, d]: readonly [number, number],
    filter: Omit<Filter, 'title'> & { layout: { block: number; shared?: boolean } },
    both = false,
  ): void => {
    const { layout, ...rest } = filter;
    const of = `layout of ${layout.block}${layout.shared ? ' shared' : ''}`;
    const title = [of, ...Object.keys(rest)].join(', ');
    for (const causal of both ? [true, false] : [true])
      list.push({ b, h, hk, t, s: t, d, causal, filter: { ...filter, title } });
  };
  add([2, 2, 2], [131, 8], { layout: { block: 16 } }, true);
  add([1, 4, 2], [203, 64], { layout: { block: 16 } }, true);
  add([1, 2, 2], [150, 40], { layout: { block: 32, shared: true } }, true);
  add([1, 2, 1], [300, 33], { layout: { block: 64 } }, true);
  add([1, 2, 2], [270, 96], { layout: { block: 128 } });
  add([1, 2, 2], [333, 4], { layout: { block: 256 } });
  add([1, 2, 1], [140, 128], { layout: { block: 16 } }, true);
  add([1, 1, 1], [35, 136], { layout: { block: 16 } });
  add([1, 1, 1], [530, 3], { layout: { block: 16 } }, true);
  add([2, 2, 2], [1, 16], { layout: { block: 16 } });
  add([2, 2, 2], [0, 16], { layout: { block: 16 } });
  const dropout = { ...keepAll, p: 0.3, seed: 17, offset: 2 };
  add([2, 2, 1], [131, 40], { layout: { block: 16 }, documents: 'packed', window: 70, dropout });
  add([2, 2, 2], [97, 24], { layout: { block: 32 }, keyMask: 'bool', lengths: [97, 50] }, true);
  const mask = { as: 'f32', repeats: [0, 1] } as const;
  add([1, 2, 2], [70, 32], { layout: { block: 16, shared: true }, mask }, true);
  const apart = (dtype: DType, { d }: Sizes): boolean => dtype !== 'f16' || d >= 64;
  return floating.flatMap((dtype) =>
    list.filter((z) => apart(dtype, z)).flatMap((z) => attentions(dtype, z, 'packed')),
  );
}

export const cases: MatrixCase[] = [...reachedAttentions(), ...laidAttentions()];
