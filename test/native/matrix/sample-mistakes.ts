// Wrong calls of SampleTokens, and the error that each must give.
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import type { View } from '../../../lib/runtime/view.js';
import type { Make, Mistake } from './mistake.js';

type Operands = kernels.SampleTokensArgs;

/** Valid operands with two rows of three tokens and four slots, except for `wrong`. */
function call(make: Make, wrong: (make: Make) => Partial<Operands>): void {
  kernels.sampleTokens({
    scores: make([2, 3]),
    slots: make([2], 'i32'),
    tokens: make([2], 'i32'),
    logprobs: null,
    settings: make([4, 6]),
    numbers: make([4, 8], 'i32'),
    recent: make([4, 64], 'i32'),
    counts: null,
    bias: null,
    masks: null,
    bans: null,
    ...wrong(make),
  });
}

type Row = [string, Mistake['code'], string, (make: Make) => Partial<Record<keyof Operands, View>>];

const rows: readonly Row[] = [
  ['dtype of scores', 'DS_DTYPE', 'i32', (m) => ({ scores: m([2, 3], 'i32') })],
  ['shape of scores', 'DS_SHAPE', '[6] f32', (m) => ({ scores: m([6]) })],
  ['strides of scores', 'DS_SHAPE', 'strides', (m) => ({ scores: m([2, 3], 'f32', [1, 2]) })],
  ['dtype of slots', 'DS_SHAPE', '[2] i64', (m) => ({ slots: m([2], 'i64') })],
  ['number of tokens', 'DS_SHAPE', '[3] i32', (m) => ({ tokens: m([3], 'i32') })],
  ['shape of logprobs', 'DS_SHAPE', '[2] f32', (m) => ({ logprobs: m([2]) })],
  ['shape of settings', 'DS_SHAPE', '[4, 5] f32', (m) => ({ settings: m([4, 5]) })],
  ['shape of numbers', 'DS_SHAPE', '[3, 8] i32', (m) => ({ numbers: m([3, 8], 'i32') })],
  ['shape of recent', 'DS_SHAPE', '[4, 8] i32', (m) => ({ recent: m([4, 8], 'i32') })],
  ['shape of counts', 'DS_SHAPE', '[1, 4] i32', (m) => ({ counts: m([1, 4], 'i32') })],
  ['dtype of bias', 'DS_DTYPE', 'f16', (m) => ({ bias: m([1, 3], 'f16') })],
  ['shape of masks', 'DS_SHAPE', '[1, 2] i32', (m) => ({ masks: m([1, 2], 'i32') })],
  ['dtype of masks', 'DS_DTYPE', 'f32', (m) => ({ masks: m([1, 1]) })],
  ['shape of bans', 'DS_SHAPE', '[1, 3] i32', (m) => ({ bans: m([1, 3], 'i32') })],
];

export const mistakes: readonly Mistake[] = [
  ...rows.map(([what, code, message, wrong]) => {
    return {
      op: 'sample_tokens',
      what,
      code,
      message,
      run: (make: Make) => call(make, wrong),
    };
  }),
  {
    op: 'sample_tokens',
    what: 'slots',
    code: 'DS_INDEX',
    message: '-1',
    run: (make) => call(make, () => ({})),
    cpuOnly: 'a GPU gives -1 for a slot that is none',
  },
];
