// Tests that all matrices of a new model differ.
import { nn, seed } from '../../lib/index.js';

const sizes = { vocabSize: 61, maxSeq: 8, layers: 2, heads: 2, channels: 16 };
const rotary = { ...sizes, kvHeads: 1, hidden: 24 };
const moe = { experts: 4, perToken: 2, hidden: 8 };

test.each<[string, () => nn.Module]>([
  ['GPT-2', () => new nn.models.GPT2(sizes)],
  ['Llama', () => new nn.models.Llama(rotary)],
  ['Mixtral', () => new nn.models.Mixtral({ ...rotary, moe })],
  ['Qwen2Moe', () => new nn.models.Qwen2Moe({ ...rotary, moe: { ...moe, sharedHidden: 16 } })],
])('%s', (_, make) => {
  seed(3);
  const matrices = make()
    .parameters()
    .filter(({ ndim }) => ndim > 1);
  const signs = matrices.map((matrix) => matrix.toArray().slice(0, 16).map(Math.sign).join());
  expect(new Set(signs).size).toBe(signs.length);
});
