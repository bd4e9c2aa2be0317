// Renamed columns in every format, every dataset and both commands.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { addGroups, readFlags } from '../../lib/launch/declared-flags.js';
import { EVAL } from '../../lib/launch/model-options.js';
import {
  LabelledDataset,
  PairDataset,
  PromptDataset,
  TextDataset,
  TextStream,
  UnpairedDataset,
} from '../../lib/text/index.js';
import { divideFiles } from '../../lib/text/row-files.js';
import { readRows } from '../../lib/text/row-reader.js';
import { readArguments } from '../../lib/trainer/command/read-arguments.js';
import { readFirstPrompt } from '../../lib/trainer/command/sample.js';
import { tokenizer } from '../serve/fake-engine.js';
import { writeWhole } from './parquet-files.js';

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-columns-'));
});
afterAll(() => rmSync(dir, { recursive: true }));

function write(name: string, content: string): string {
  const path = join(dir, name);
  writeFileSync(path, content);
  return path;
}

const lines = (...rows: object[]): string => rows.map((row) => `${JSON.stringify(row)}\n`).join('');
const faq = [
  { question: 'Why?', answer: 'So.', id: 1 },
  { question: 'When?', answer: 'Now.', id: 2 },
];
const plain = faq.map(({ question, answer }) => ({ prompt: question, completion: answer }));
const columns = { question: 'prompt', answer: 'completion' };

async function rowsOf(path: string, renamed: Record<string, string> = columns): Promise<object[]> {
  const rows: object[] = [];
  for (const part of await divideFiles([path], false, renamed)) {
    for await (const { row } of readRows(part)) rows.push(row);
  }
  return rows;
}

test('columns of JSON and CSV are renamed, the others stay', async () => {
  const expected = plain.map((row, i) => ({ ...row, id: i + 1 }));
  expect(await rowsOf(write('a.jsonl', lines(...faq)))).toEqual(expected);
  expect(await rowsOf(write('a.json', JSON.stringify(faq)))).toEqual(expected);
  const csv = write('a.csv', 'question,answer,id\nWhy?,So.,1\nWhen?,Now.,2\n');
  expect(await rowsOf(csv)).toEqual(expected.map((row) => ({ ...row, id: String(row.id) })));
});

test('columns of Parquet are renamed', async () => {
  const path = join(dir, 'a.parquet');
  const data = Object.entries({ question: ['Why?', 'When?'], answer: ['So.', 'Now.'] });
  const code = JSON.stringify(data.map(([name, data]) => ({ name, data, type: 'STRING' })));
  writeWhole([{ path, columns: code, codec: 'UNCOMPRESSED' }]);
  expect(await rowsOf(path)).toEqual(plain);
  const rejected = expect(rowsOf(path, { qestion: 'prompt' })).rejects;
  await rejected.toThrow(/a\.parquet, row 0: .*got "question", "answer"/);
});

test('columns can change places', async () => {
  const path = write('swap.jsonl', lines({ prompt: 'a', completion: 'b' }));
  const swapped = { prompt: 'completion', completion: 'prompt' };
  expect(await rowsOf(path, swapped)).toEqual([{ completion: 'a', prompt: 'b' }]);
});

test.each([
  [
    { qestion: 'prompt' },
    /b\.jsonl:1: expected the column "qestion".*got "question", "answer", "id"/,
  ],
  [
    { question: 'answer' },
    /:1: expected no column "answer", the new name of "question", got "question"/,
  ],
])('rows without the column, or with both, are refused: %j', async (renamed, message) => {
  const path = write('b.jsonl', lines(...faq));
  const rejected = expect(rowsOf(path, renamed)).rejects;
  await rejected.toThrow(message);
});

test('a row that lacks the column is named by its line', async () => {
  const path = write('c.jsonl', lines(faq[0]!, { prompt: 'Why?' }));
  await expect(rowsOf(path)).rejects.toThrow(/c\.jsonl:2: .*got "prompt"/);
});

test.each([
  ['question', /columns: expected new names by column/],
  [{ question: '' }, /columns question: expected the new name/],
  [{ question: 'text', answer: 'text' }, /columns: expected different new names, got two "text"/],
])('the value %j is refused', async (value, message) => {
  const files = write('d.jsonl', lines(...faq));
  const opened = TextDataset.open({ files, tokenizer, length: 64, columns: value as never });
  await expect(opened).rejects.toThrow(message);
});

test('every dataset renames columns', async () => {
  const files = write('e.jsonl', lines(...faq));
  const before = write('e-plain.jsonl', lines(...plain));
  const text = { tokenizer, length: 64, packing: false, threads: 0 };
  const renamed = await TextDataset.open({ ...text, files, columns });
  const expected = await TextDataset.open({ ...text, files: before });
  expect([renamed.length, renamed.get(1)]).toEqual([2, expected.get(1)]);

  const stream = await TextStream.open({ ...text, files, columns, shuffle: false });
  for await (const { ids } of stream) {
    expect(ids.toArray()).toEqual([...expected.get(0).ids]);
    break;
  }
  const prompts = await PromptDataset.open({ tokenizer, files, columns: { question: 'prompt' } });
  expect(prompts.get(0)).toMatchObject({ prompt: 'Why?', columns: { answer: 'So.', id: 1 } });

  const pairs = [{ q: 'Why?', good: 'So.', bad: 'No.' }];
  const names = { q: 'prompt', good: 'chosen', bad: 'rejected' };
  const pair = await PairDataset.open({ tokenizer, length: 64, rows: pairs, columns: names });
  expect(pair.length).toBe(1);

  const marked = [{ q: 'Why?', a: 'So.', ok: true }];
  const marks = { q: 'prompt', a: 'completion', ok: 'label' };
  const answers = await UnpairedDataset.open({
    tokenizer,
    length: 64,
    rows: marked,
    columns: marks,
  });
  expect(answers.report?.desirable).toBe(1);

  const rows = [
    { review: 'good', stars: 'five' },
    { review: 'bad', stars: 'one' },
  ];
  const labelled = { tokenizer, rows, columns: { review: 'text', stars: 'label' } };
  expect((await LabelledDataset.open(labelled)).labels).toEqual(['five', 'one']);
  expect((await readFirstPrompt(tokenizer, [files], 'text', columns))?.text).toBe('Why?');
});

test('threads rename columns, and the cache knows them', async () => {
  const files = write('f.jsonl', lines({ a: 'one', b: 'two two' }));
  const cache = join(dir, 'cache');
  const tokensOf = async (renamed: Record<string, string>): Promise<number> => {
    const options = { files, tokenizer, length: 64, packing: false, threads: 1, cache };
    const { report } = await TextDataset.open({ ...options, columns: renamed });
    return report?.tokens ?? 0;
  };
  const first = await tokensOf({ a: 'text' });
  expect(await tokensOf({ b: 'text' })).toBeGreaterThan(first);
  expect(await tokensOf({ a: 'text' })).toBe(first);
});

test('ds train reads pairs and JSON', async () => {
  const read = async (...words: string[]) => (await readArguments(words)).args.columns;
  expect(await read('--columns', 'question=prompt,answer=completion')).toEqual(columns);
  expect(await read('--columns', 'question=prompt', 'answer=completion')).toEqual(columns);
  expect(await read('--columns', JSON.stringify(columns))).toEqual(columns);
  for (const wrong of ['question', 'a=b,', 'a=b,a=c', '=b']) {
    await expect(read('--columns', wrong)).rejects.toThrow(/expected NAME=VALUE,NAME=VALUE/);
  }
});

test('ds eval reads pairs as ds train, and refuses a column that it would lose', () => {
  const read = (...words: string[]) => {
    const command = new Command().exitOverride().configureOutput({ writeErr: () => {} });
    addGroups(command, EVAL);
    command.parse(['--data', 'f.jsonl', ...words], { from: 'user' });
    return readFlags(EVAL, command.opts()).columns;
  };
  expect(read('--columns', 'question=prompt, answer=completion')).toEqual(columns);
  expect(read('--columns', 'question=prompt', '--columns', 'answer=completion')).toEqual(columns);
  expect(Object.keys(read('--columns', '__proto__=text') ?? {})).toEqual(['__proto__']);
  for (const wrong of [['a=b,a=c'], ['a=b', '--columns', 'a=c'], ['question']]) {
    const words = ['--columns', ...wrong];
    expect(() => read(...words)).toThrow(/NAME=VALUE,NAME=VALUE with different names/);
  }
});

test('a position of a stream with other columns is refused', async () => {
  const files = write('stream.jsonl', lines(...faq));
  const open = (more: object) => TextStream.open({ files, tokenizer, length: 16, ...more });
  const [named, swapped] = [{ columns }, { columns: { question: 'completion', answer: 'prompt' } }];
  const state = (await open(named)).stateDict();
  const again = await open({ columns: { answer: 'completion', question: 'prompt' } });
  again.loadStateDict(JSON.parse(JSON.stringify(state)));
  for (const other of [swapped, {}]) {
    const stream = await open(other);
    expect(() => stream.loadStateDict(state)).toThrow(
      /a position with columns .*got a position with col/,
    );
  }
  // A state without columns belongs to a stream without them.
  const { columns: _, ...former } = (await open({})).stateDict();
  (await open({})).loadStateDict(former);
});
