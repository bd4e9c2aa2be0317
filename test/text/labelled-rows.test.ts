// LabelledDataset: kinds of labels, answers in a context, and refused rows and options.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from '../../lib/index.js';
import { TOKENIZERS } from '../models/head-rows.js';

const tokenizer = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'wordpiece'));
const rowsOf = (...labels: unknown[]) => labels.map((label) => ({ text: 'a dog', label }));
type Options = Partial<Parameters<typeof text.LabelledDataset.open>[0]>;
const open = (options: object) =>
  text.LabelledDataset.open({ tokenizer, ...(options as Options) } as never);
const targets = (data: text.LabelledDataset): number[][] =>
  Array.from({ length: data.length }, (_, i) => [...data.get(i).target]);

test('lists of one length with 0 and 1 have a number for each label', async () => {
  const hot = await open({ rows: rowsOf([0, 1, 0], [1, 0, 1]) });
  expect([hot.kind, hot.labels]).toEqual(['classes', ['LABEL_0', 'LABEL_1', 'LABEL_2']]);
  expect(targets(hot)).toEqual([
    [0, 1, 0],
    [1, 0, 1],
  ]);
  const named = { labels: ['a', 'b', 'c'], kind: 'classes' };
  expect(targets(await open({ rows: rowsOf([0, 1, 1]), ...named }))).toEqual([[0, 1, 1]]);
  // Two indices of three labels.
  expect(targets(await open({ rows: rowsOf([0, 1], [1, 0]), ...named }))).toEqual([
    [1, 1, 0],
    [1, 1, 0],
  ]);
  expect(targets(await open({ rows: rowsOf([0, 2], [1]) }))).toEqual([
    [1, 0, 1],
    [0, 1, 0],
  ]);
});

test('lists of values have a name for each value', async () => {
  const data = await open({ rows: rowsOf([0.5, 2], [1, -1]), kind: 'value' });
  expect(data.labels).toEqual(['LABEL_0', 'LABEL_1']);
});

test.each<[string, object, RegExp]>([
  [
    'texts as values',
    { rows: rowsOf('a', 'b'), kind: 'value' },
    /row 0: .*a number as the label, got "a"/,
  ],
  ['NaN', { rows: rowsOf(0.5, Number.NaN) }, /row 1: expected a number as the label, got NaN/],
  ['values of two lengths', { rows: rowsOf([1, 2], [3]), kind: 'value' }, /row 1: .*2 numbers/],
  [
    'one class in place of several',
    { rows: rowsOf('ab'), kind: 'classes' },
    /row 0: .*list of labels, got "ab"/,
  ],
  [
    'several classes in place of one',
    { rows: rowsOf([0]), kind: 'class' },
    /row 0: expected one label/,
  ],
  ['only one class', { rows: rowsOf('x', 'x') }, /expected at least two labels, got only "x"/],
  ['a row that is no object', { rows: [null] }, /row 0: expected an object, got null/],
  ['rows that are no list', { rows: {} }, /open rows: expected a list or an iterable/],
  ['labels twice', { rows: rowsOf(0), labels: ['a', 'a'] }, /labels: .*each of them once/],
  ['a number of labels', { rows: rowsOf(0), labels: 2 }, /open labels: expected a list of names/],
  ['one key in a list', { rows: rowsOf(0), textKey: ['text'] }, /textKey: .*a list of two keys/],
  ['a number as a key', { rows: rowsOf(0), labelKey: 3 }, /labelKey: expected a string, got 3/],
  ['an unknown kind', { rows: rowsOf(0), kind: 'x' }, /kind: expected "class"/],
  ['a share above 1', { rows: rowsOf(0), task: 'masked-lm', maskShare: 5 }, /maskShare: .*below 1/],
])('%s: refused', async (_, options, message) => {
  await expect(open(options)).rejects.toThrow(message);
  await expect(open(options)).rejects.toMatchObject({ code: expect.stringMatching(/^DS_/) });
});

test('a wrong value of a CSV column is shown with its line', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-labels-'));
  const file = join(dir, 'rows.csv');
  writeFileSync(file, 'text,label\na,1.5\nb,2.5\nc,many\n');
  await expect(open({ files: file, kind: 'value' })).rejects.toThrow(
    /rows\.csv:4: expected a number as the label, got "many"/,
  );
  writeFileSync(file, 'text,label\n');
  await expect(open({ files: file })).rejects.toThrow(/expected rows, got none in .*rows\.csv/);
  rmSync(dir, { recursive: true });
});

const context = 'the dog was a good dog';
const asked = (answers: unknown, of = context) =>
  open({ rows: [{ question: 'the cat', context: of, answers }], task: 'question-answering' });
/** The words of the answer in a sample. */
const wordsOf = (data: text.LabelledDataset): string => {
  const { ids, target } = data.get(0);
  return tokenizer.decode(ids.slice(target[0], (target[1] as number) + 1));
};

test('answers have both forms of SQuAD, and offsets of Python or JavaScript', async () => {
  const form = (start: number) => ({ text: ['good dog'], answer_start: [start] });
  expect(wordsOf(await asked(form(14)))).toBe('good dog');
  expect(wordsOf(await asked([{ text: 'good dog', answer_start: 14 }]))).toBe('good dog');
  for (const start of [16, 18]) {
    expect(wordsOf(await asked(form(start), `😀😀${context}`))).toBe('good dog');
  }
  const empty = { text: [''], answer_start: [-1] };
  for (const none of [null, [], { text: [], answer_start: [] }, empty]) {
    const { ids, target } = (await asked(none)).get(0);
    expect([...target]).toEqual([ids.length, ids.length]);
  }
});

test.each<[string, unknown, RegExp]>([
  ['another text', { text: ['cat'], answer_start: [4] }, /row 0: .*"cat" at character 4 of the/],
  ['a negative start', { text: ['the dog'], answer_start: [-1] }, /"the dog" at character -1 of/],
  ['a start outside', { text: ['dog'], answer_start: [400] }, /at character 400 of the context/],
  ['a text in place of a list', { text: 'dog', answer_start: 4 }, /row 0: expected "answers" as/],
  ['a string', 'dog', /row 0: expected "answers" as/],
])('an answer with %s is refused', async (_, answers, message) => {
  await expect(asked(answers)).rejects.toThrow(message);
});
