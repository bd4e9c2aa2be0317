// Log-likelihoods and multiple-choice tasks, against sums over the logits and the rules of
// lm-evaluation-harness.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { evaluation, nn, text } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { best, logProbabilities, MAX_SEQ, TOKENIZER, writeModel } from './models.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-choices-'));
const folder = join(dir, 'model');
const tokenizer = text.Tokenizer.fromPretrained(TOKENIZER);
const encode = (words: string): number[] => [
  ...tokenizer.encode(words, { addSpecialTokens: false }),
];

let model: nn.models.CausalLM;
beforeAll(async () => {
  await writeModel(folder);
  model = await nn.models.fromPretrained(folder);
});
afterAll(() => rmSync(dir, { recursive: true }));

function writeRows(name: string, rows: readonly unknown[]): string {
  const path = join(dir, name);
  writeFileSync(path, rows.map((row) => JSON.stringify(row)).join('\n'));
  return path;
}

/** The sum of log-probabilities of `targets` after `before`. */
function sumOf(before: readonly number[], targets: readonly number[]) {
  const logs = logProbabilities(model, [...before, ...targets]);
  const rows = targets.map((_, i) => logs[before.length + i - 1] as number[]);
  return {
    logLikelihood: rows.reduce((sum, row, i) => sum + (row[targets[i] as number] as number), 0),
    isGreedy: rows.every((row, i) => best(row) === targets[i]),
  };
}

test.each([1, 2, 8])(
  'log-likelihoods equal the sums over the logits, batch %d',
  async (batchSize) => {
    const pairs = [
      ['The stages', ' shard state'],
      ['A', ' rank'],
      ['Gradients are summed over', ' all ranks, and then divided'],
    ] as const;
    const found = await evaluation.logLikelihoods(model, pairs, { batchSize });
    for (const [i, [context, continuation]] of pairs.entries()) {
      const before = encode(context);
      const targets = encode(context + continuation).slice(before.length);
      const { logLikelihood, isGreedy } = sumOf(before, targets);
      expect(found[i]?.logLikelihood).toBeCloseTo(logLikelihood, 4);
      expect([found[i]?.isGreedy, found[i]?.tokens]).toEqual([isGreedy, targets.length]);
    }
  },
);

test('a greedy continuation is found', async () => {
  const before = encode('The stages');
  const next = best(logProbabilities(model, before).at(-1) as number[]);
  const [one] = await evaluation.logLikelihoods(model, [['The stages', tokenizer.decode([next])]]);
  const isSame =
    encode(`The stages${tokenizer.decode([next])}`).join() === [...before, next].join();
  expect([isSame, one?.isGreedy]).toEqual([true, true]);
});

test('spaces at the end of a context belong to the continuation', async () => {
  const [one, other] = await evaluation.logLikelihoods(model, [
    ['A rank  ', 'waits'],
    ['A rank', '  waits'],
  ]);
  expect(one).toEqual(other);
});

test('an empty context becomes EOS, or BOS; addBos puts BOS before every context', async () => {
  const { eosId } = tokenizer;
  const [one] = await evaluation.logLikelihoods(model, [['', 'A rank']]);
  const after = (start: number | null) => sumOf([start as number], encode('A rank')).logLikelihood;
  expect(one?.logLikelihood).toBeCloseTo(after(eosId), 4);
  const { message } = await refusal(() =>
    evaluation.logLikelihoods(model, [['A', ' rank']], { addBos: true }),
  );
  expect(message).toMatch(
    /addBos: expected a tokenizer with a BOS token, got a tokenizer without a BOS token/,
  );

  const other = join(dir, 'with-bos');
  cpSync(TOKENIZER, other, { recursive: true });
  const file = join(other, 'tokenizer_config.json');
  const config = JSON.parse(readFileSync(file, 'utf8'));
  writeFileSync(file, JSON.stringify({ ...config, bos_token: tokenizer.idToToken(1001) }));
  const found = await evaluation.logLikelihoods(
    model,
    [
      ['', 'A rank'],
      ['A', ' rank'],
    ],
    { tokenizer: other, addBos: true },
  );
  expect(found[0]?.logLikelihood).toBeCloseTo(after(1001), 4);
  const before = encode('A');
  const expected = sumOf([1001, ...before], encode('A rank').slice(before.length));
  expect(found[1]?.logLikelihood).toBeCloseTo(expected.logLikelihood, 4);
});

test('a too long context is cut from the left', async () => {
  const context = 'The stages shard state over ranks. '.repeat(4).trim();
  const [one] = await evaluation.logLikelihoods(model, [[context, ' A rank']]);
  const before = encode(context);
  const targets = encode(`${context} A rank`).slice(before.length);
  const kept = [...before, ...targets].slice(-(MAX_SEQ + 1));
  expect(one?.cut).toBe(before.length + targets.length - kept.length);
  // The model reads MAX_SEQ tokens; the last one is only predicted.
  const logs = logProbabilities(model, kept.slice(0, -1));
  const expected = targets.reduce((sum, target, i) => {
    const row = logs[kept.length - targets.length + i - 1] as number[];
    return sum + (row[target] as number);
  }, 0);
  expect(one?.logLikelihood).toBeCloseTo(expected, 4);
});

/** Whether the model prefers each choice, and per character, by sums over the logits. */
function prefers(context: string, choices: readonly string[], delimiter = ' ') {
  const before = encode(context);
  const scores = choices.map((choice) => {
    const targets = encode(context + delimiter + choice).slice(before.length);
    return sumOf(before, targets).logLikelihood;
  });
  const normal = scores.map((score, i) => score / [...(choices[i] as string)].length);
  return { scores, choice: best(scores), normalizedChoice: best(normal) };
}

const QUESTIONS = [
  {
    context: 'Which stage shards gradients?',
    choices: ['Stage 1', 'Stage 2 does', 'None of them'],
    answer: 1,
  },
  {
    prompt: 'Who starts the ranks?',
    choices: ['The launcher', 'A rank, which then waits'],
    answer: 'The launcher',
  },
  { context: 'A rank', choices: ['é', 'waits for gradients of all other ranks'], answer: [0, 1] },
];

test.each([' ', '\n'])('accuracy counts the likeliest choice, delimiter %j', async (delimiter) => {
  const files = writeRows('questions.jsonl', QUESTIONS);
  const found = await evaluation.evaluateChoices(model, { files, delimiter, batchSize: 2 });
  const expected = QUESTIONS.map(({ context, prompt, choices }) =>
    prefers((context ?? prompt) as string, choices, delimiter),
  );
  const correct = [[1], [0], [0, 1]];
  for (const [i, answer] of found.answers.entries()) {
    const { scores, choice, normalizedChoice } = expected[i] as ReturnType<typeof prefers>;
    expect([answer.choice, answer.normalizedChoice]).toEqual([choice, normalizedChoice]);
    expect(answer.correct).toEqual(correct[i]);
    for (const [c, one] of answer.logLikelihoods.entries()) {
      expect(one).toBeCloseTo(scores[c] as number, 4);
    }
  }
  const share = (pick: 'choice' | 'normalizedChoice') =>
    expected.filter((item, i) => correct[i]?.includes(item[pick])).length / expected.length;
  const { accuracy, normalizedAccuracy, questions } = found;
  expect([accuracy, normalizedAccuracy, questions]).toEqual([
    share('choice'),
    share('normalizedChoice'),
    3,
  ]);
  const deviation = (p: number) => Math.sqrt((p * (1 - p)) / 2);
  expect(found.accuracyStderr).toBeCloseTo(deviation(accuracy), 10);
  expect(found.normalizedAccuracyStderr).toBeCloseTo(deviation(normalizedAccuracy), 10);
});

test('the first of equal choices counts; one question has no standard error', async () => {
  const rows = [{ context: 'A rank', choices: ['waits', 'waits'], answer: 1 }];
  const found = await evaluation.evaluateChoices(model, { files: writeRows('tie.jsonl', rows) });
  expect([found.answers[0]?.choice, found.accuracy, found.accuracyStderr]).toEqual([0, 0, null]);
});

test.each<[row: object, message: RegExp]>([
  [{ choices: ['a', 'b'], answer: 0 }, /bad\.jsonl:2: expected a string "context" or "prompt"/],
  [{ context: 'x', choices: ['a'], answer: 0 }, /"choices", a list of two strings or more/],
  [{ context: 'x', choices: ['a', ''], answer: 0 }, /"choices"/],
  [{ context: 'x', choices: ['a', 'b'], answer: 2 }, /"answer", a number from 0 to 1 or the text/],
  [{ context: 'x', choices: ['a', 'b'], answer: 'c' }, /"answer"/],
  [{ context: 'x', choices: ['a', 'b'] }, /"answer"/],
  [{ context: 'x', choices: ['a', 'long '.repeat(40)], answer: 0 }, /of at most 24 tokens/],
])('refuses the row %j', async (row, message) => {
  const good = { context: 'x', choices: ['a', 'b'], answer: 0 };
  const files = writeRows('bad.jsonl', [good, row]);
  const { code, message: text } = await refusal(() => evaluation.evaluateChoices(model, { files }));
  expect([code, text]).toEqual(['DS_DATA', expect.stringMatching(message)]);
});
