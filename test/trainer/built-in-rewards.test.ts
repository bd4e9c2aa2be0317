// Built-in reward functions, reward models, and errors that name the row.
import { nn, type Reward, rewards, seed } from '../../lib/index.js';
import { readRewards, rewardsOf } from '../../lib/trainer/rollouts/reward.js';
import { refusal } from '../support/refusal.js';
import { tokenizer } from './grpo-tiny.js';

const completion = (content: string, length = 3) => ({
  content,
  tokens: Array.from({ length }, (_, i) => i),
  isTruncated: false,
});

const judgedOf = (contents: readonly string[], columns: Record<string, unknown[]> = {}) => ({
  prompts: contents.map((_, i) => `prompt ${i}`),
  completions: contents.map((content) => completion(content)),
  columns,
  step: 0,
  locations: contents.map((_, i) => `rows.jsonl:${i + 1}`),
});

const scores = async (of: Reward, ...judged: Parameters<typeof judgedOf>) =>
  (await rewardsOf(readRewards('test', of), judgedOf(...judged))).map(([one]) => one);

test('accuracy compares answers by value', async () => {
  const cases = [
    ['It is \\boxed{1{,}000}', '1000', 0],
    ['so \\boxed{\\frac{1}{2}}', '\\boxed{\\frac{1}{2}}', 1],
    ['2 + 2 = 4.', '#### 4', 1],
    ['#### 1,250', '1250', 1],
    ['about 0.5', '1/2', 1],
    ['I do not know', '7', 0],
    ['yes', 'yes', 0],
    ['#### Yes', 'yes', 1],
    ['7', '', null],
  ] as const;
  const found = await scores(
    rewards.accuracy,
    cases.map(([content]) => content),
    { solution: cases.map(([, solution]) => solution) },
  );
  expect(found).toEqual(cases.map(([, , wanted]) => wanted));
  expect(await scores(rewards.accuracy, ['4', '5'], { answer: ['2 + 2 #### 4', '4'] })).toEqual([
    1, 0,
  ]);
  const error = await refusal(() => scores(rewards.accuracy, ['1'], { right: ['1'] }));
  expect(error.message).toMatch(/a column "solution" or "answer" .* got right\. Rename/);
});

test('format wants one thought before the answer', async () => {
  const found = await scores(rewards.format, [
    '<think>\nwhy\n</think>\n4',
    '4',
    '<think>a<think>b</think>4',
    'so <think>a</think>4',
  ]);
  expect(found).toEqual([1, 0, 0, 0]);
});

test('overlong falls over the last tokens', async () => {
  const of = rewards.overlong({ limit: 10, cache: 4 });
  const judged = {
    ...judgedOf(['a', 'b', 'c', 'd']),
    completions: [6, 8, 10, 11].map((length) => completion('', length)),
  };
  const found = await rewardsOf(readRewards('test', of), judged);
  expect(found.map(([one]) => one)).toEqual([0, -0.5, -1, -1]);
});

test('repetition counts repeated parts', async () => {
  const found = await scores(rewards.repetition({ size: 2, penalty: -1 }), [
    'a b a b a',
    'a b c d',
    'a',
    '',
  ]);
  expect(found).toEqual([-0.5, -0, 0, 0]);
});

test('a reward model scores prompt and completion', async () => {
  seed(1);
  const sizes = { maxSeq: 32, layers: 1, heads: 2, channels: 16, hidden: 32 };
  const { config } = new nn.models.Llama({ ...sizes, vocabSize: tokenizer.vocabSize }).describe();
  const judge = nn.models.fromConfig(config, {
    task: 'sequence-classification',
    labels: ['reward'],
  });
  const of = rewards.model({ model: judge, tokenizer, batchSize: 2 });
  const together = (await scores(of, ['a', 'b and a longer one', 'c'])) as number[];
  const alone = (await scores(of, ['a'])) as number[];
  expect(alone[0]).toBeCloseTo(together[0] as number, 5);
  expect(new Set(together).size).toBe(3);
  const two = nn.models.fromConfig(config, {
    task: 'sequence-classification',
    labels: ['a', 'b'],
  });
  expect(() => rewards.model({ model: two, tokenizer })).toThrow(/one label.*2 labels/);
});

const settings = (of: Reward, more: object = {}) =>
  readRewards('test', { of, name: 'judge', ...more });

test('several functions have names and weights, and null for no judgement', async () => {
  const functions = readRewards('test', [
    () => [1, null],
    { of: async () => [true as never, 0], weight: 0.5, name: 'late' },
  ]);
  expect(functions.map(({ name, weight }) => [name, weight])).toEqual([
    ['reward_0', 1],
    ['late', 0.5],
  ]);
  expect(await rewardsOf(functions, judgedOf(['a', 'b']))).toEqual([
    [1, 1],
    [null, 0],
  ]);
});

test.each([
  [
    settings(({ completions }) =>
      completions.map(({ content }) => {
        if (content === 'b') throw new Error('no b');
        return 1;
      }),
    ),
    /reward judge of rows.jsonl:2: expected a reward, got the error "no b"/,
  ],
  [settings(() => [0, Number.NaN, 0]), /judge of rows.jsonl:2: expected a finite number.*NaN/],
  [settings(() => [0]), /judge of rows.jsonl:1, .*: expected 3 rewards, got 1/],
  [settings(() => 1 as never), /expected a list of 3 rewards, got 1/],
  [
    settings(() => new Promise(() => {}), { timeout: 0.05 }),
    /judge of rows.jsonl:1, .*: expected rewards within 0.05 s, got none/,
  ],
])('a failure names the row: %#', async (functions, message) => {
  const error = await refusal(() => rewardsOf(functions, judgedOf(['a', 'b', 'c'])));
  expect([error.code, error.message]).toEqual(['DS_DATA', expect.stringMatching(message)]);
});

test('a timeout aborts the signal of the function', async () => {
  let isAborted = false;
  const hangs: Reward = ({ signal }) =>
    new Promise(() => {
      signal.addEventListener('abort', () => {
        isAborted = true;
      });
    });
  await refusal(() => rewardsOf(settings(hangs, { timeout: 0.01 }), judgedOf(['a'])));
  expect(isAborted).toBe(true);
});
