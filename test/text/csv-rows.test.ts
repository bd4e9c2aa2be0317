// Rows of CSV and TSV files: quotes, delimiters, parts of large files, and values that are numbers.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { text } from '../../lib/index.js';
import { divideFiles } from '../../lib/text/row-files.js';
import { readRows } from '../../lib/text/row-reader.js';
import { emptyFolder, expectRejection, removeFolders } from './folders.js';

const TOKENIZERS = join(__dirname, '..', 'golden', 'transformers', 'tokenizers');
const tokenizer = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'qwen2'));
const folder = emptyFolder();
afterAll(removeFolders);

function write(name: string, content: string | Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
}

async function rowsOf(path: string): Promise<object[]> {
  const rows: object[] = [];
  for (const part of await divideFiles([path], false)) {
    for await (const { row } of readRows(part)) rows.push(row);
  }
  return rows;
}

test('values in quotes contain delimiters, line ends and quotes', async () => {
  const path = write(
    'quotes.csv',
    '\uFEFFtext,label\r\n"a, ""b""\r\nc",x\r\n\r\nsize 5" pipe,y\r\n,"ü 😀"\r\n"open" end,z',
  );
  expect(await rowsOf(path)).toEqual([
    { text: 'a, "b"\r\nc', label: 'x' },
    { text: 'size 5" pipe', label: 'y' },
    { text: '', label: 'ü 😀' },
    { text: 'open end', label: 'z' },
  ]);
});

test.each([
  ['semicolons.csv', 'text;label\n"a;b";1,5\nc, d, e;2\n'],
  ['tabs.csv', 'text\tlabel\na;b\t1,5\nc, d, e\t2\n'],
  ['tabs.tsv', 'text\tlabel\na;b\t1,5\nc, d, e\t2\n'],
  ['pipes.csv', 'text|label\na;b|1,5\nc, d, e|2\n'],
])('%s has the delimiter of its header', async (name, content) => {
  expect(await rowsOf(write(name, content))).toEqual([
    { text: 'a;b', label: '1,5' },
    { text: 'c, d, e', label: '2' },
  ]);
});

test('the index of pandas is left out, and one column needs no delimiter', async () => {
  expect(await rowsOf(write('index.csv', ',text\n0,a\n1,b\n'))).toEqual([
    { text: 'a' },
    { text: 'b' },
  ]);
  expect(await rowsOf(write('one.csv', 'text\nhello there\nx\n'))).toEqual([
    { text: 'hello there' },
    { text: 'x' },
  ]);
  expect(await rowsOf(write('none.csv', ''))).toEqual([]);
  expect(await rowsOf(write('header.csv', 'text,label\n'))).toEqual([]);
});

test('parts of a large file contain each row once', async () => {
  const value = (i: number): string => `row ${i}\n"${'x'.repeat((i * 37) % 4000)}, ü`;
  const rows = Array.from({ length: 5000 }, (_, i) => ({ id: String(i), text: value(i) }));
  const quoted = rows.map(({ id, text: one }) => `${id},"${one.replaceAll('"', '""')}"\n`);
  const path = write('large.csv', `id,text\n${quoted.join('')}`);
  expect((await divideFiles([path], false)).length).toBeGreaterThan(2);
  expect(await rowsOf(path)).toEqual(rows);
});

test.each([
  ['few.csv', 'text,label\na,b\n\nc\n', /few\.csv:4: expected 2 values, for text, label, got 1\./],
  ['many.csv', 'text,label\na,b,c\n', /many\.csv:2: expected 2 values.* got 3\. Put .* quotes/],
  ['twice.csv', 'text,text\na,b\n', /twice\.csv: expected columns with different .*"text" twice/],
  ['open.csv', 'text,label\n"a,b\nc,d\n', /open\.csv: expected a quote that ends .* byte 11/],
  ['bytes.csv', Buffer.from('text\nm\xfcller\n', 'latin1'), /bytes\.csv:2: expected UTF-8 text/],
])('%s is refused with the place', async (name, content, message) => {
  await expectRejection(() => rowsOf(write(name, content)), 'DS_DATA', message);
});

test('labels that are numbers are classes or values, others are names', async () => {
  const open = (name: string, labels: readonly string[]) => {
    const files = write(name, `text,label\n${labels.map((label) => `a b,${label}\n`).join('')}`);
    return text.LabelledDataset.open({ files, tokenizer });
  };
  const classes = await open('classes.csv', ['0', '2', '1']);
  expect([classes.kind, classes.labels]).toEqual(['class', ['LABEL_0', 'LABEL_1', 'LABEL_2']]);
  expect(classes.get(1).target).toEqual(Int32Array.of(2));
  const values = await open('values.csv', ['0.5', '-2', '1e1']);
  expect([values.kind, values.get(2).target]).toEqual(['value', Float32Array.of(10)]);
  const names = await open('names.csv', ['1', 'two', '1']);
  expect(names.labels).toEqual(['1', 'two']);
  await expectRejection(
    () => open('empty.csv', ['a', '']),
    'DS_DATA',
    /empty\.csv:3: expected a label, got an empty value/,
  );
});

test('texts that look like numbers stay texts, and flags of answers are read', async () => {
  const files = write('sums.csv', 'prompt,completion,label\n1+1=,2,True\n1+2=,4,false\n');
  const answers = await text.UnpairedDataset.open({ files, tokenizer });
  expect([answers.get(0).desirable, answers.get(1).desirable]).toEqual([true, false]);
  const options = { files, tokenizer, length: 16, threads: 0, packing: false };
  const { ids } = (await text.TextDataset.open(options)).get(1);
  expect(tokenizer.decode(ids, { skipSpecialTokens: true })).toBe('1+2=4');
});

test('a file without a header is refused with the place of the names', async () => {
  const files = write('bare.csv', `${'my printer is broken '.repeat(5)},hardware\nhelp,account\n`);
  await expectRejection(
    () => text.LabelledDataset.open({ files, tokenizer }),
    'DS_DATA',
    /bare\.csv:2: expected a label .* got a row with my printer .{29}\.\., hardware\. .* The first line/,
  );
});

test('other labels of answers are refused with the two that are read', async () => {
  const files = write('rated.csv', 'prompt,completion,label\n1+1=,2,good\n');
  await expectRejection(
    () => text.UnpairedDataset.open({ files, tokenizer }),
    'DS_DATA',
    /rated\.csv:2: expected true or false .* got "good"\. Write true for good answers/,
  );
});

test('64-bit integers of Parquet are labels', async () => {
  const rows = [0n, 1n].map((label) => ({ text: 'a', label }));
  const set = await text.LabelledDataset.open({ rows, tokenizer });
  expect([set.labels?.length, set.get(1).target]).toEqual([2, Int32Array.of(1)]);
  const tagged = [{ tokens: ['a', 'b'], ner_tags: [0n, 1n] }];
  const tags = await text.LabelledDataset.open({
    rows: tagged,
    tokenizer,
    task: 'token-classification',
  });
  expect([...tags.get(0).target]).toEqual([0, 1]);
});
