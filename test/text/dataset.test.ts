// Datasets and streams of text: every kind of row and file, losses, caches, threads, order and
// resumption.
import { execFileSync } from 'node:child_process';
import fs, { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { data, Tensor, text } from '../../lib/index.js';
import type { JsonObject } from '../../types/json.js';
import { emptyFolder, expectRejection, removeFolders } from './folders.js';

const TOKENIZERS = join(__dirname, '..', 'golden', 'transformers', 'tokenizers');
const qwen = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'qwen2'));
const llama = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'llama2'));
const folder = emptyFolder();

afterAll(removeFolders);

/** A file of the folder with these rows. */
function jsonl(name: string, rows: readonly object[]): string {
  const path = join(folder, name);
  writeFileSync(path, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  return path;
}

const open = (files: string | string[], options: object = {}): Promise<text.TextDataset> =>
  text.TextDataset.open({ files, tokenizer: qwen, length: 64, threads: 0, ...options });

/** All samples as lists without padding. Labels that are not learned are null. */
function contents(dataset: text.TextDataset): { ids: number[]; learned: (number | null)[] }[] {
  return Array.from({ length: dataset.length }, (_, i) => {
    const { ids, labels } = dataset.get(i);
    return { ids: [...ids], learned: Array.from(labels, (x) => (x === -100 ? null : x)) };
  });
}

const words = (count: number, from = 0): string =>
  Array.from({ length: count }, (_, i) => `word${from + i}`).join(' ');

test('rows of text end with the end token, and all but the first token is learned', async () => {
  const path = jsonl('text.jsonl', [
    { text: 'Hello there' },
    { text: '' },
    { other: 1, text: 'x' },
  ]);
  const dataset = await open(path, { packing: false });
  const ids = [...qwen.encode('Hello there'), qwen.eosId as number];
  const [first] = contents(dataset);
  expect(first).toEqual({ ids, learned: [null, ...ids.slice(1)] });
  expect(dataset.report).toMatchObject({ rows: 3, unlearned: 1, samples: 2, cutRows: 0 });
});

test("conversations are learned whole, or only the assistant's messages", async () => {
  const messages = [
    { role: 'user', content: 'Two plus two?' },
    { role: 'assistant', content: 'Four' },
  ];
  const path = jsonl('chat.jsonl', [{ messages }]);
  const chat = qwen.applyChatTemplate(messages);
  const [all] = contents(await open(path, { packing: false }));
  expect(all?.ids).toEqual([...chat.ids]);
  expect(all?.learned).toEqual([null, ...chat.ids.slice(1)]);
  const [own] = contents(await open(path, { packing: false, loss: 'assistant' }));
  const answerIds = own?.learned.filter((id) => id !== null) as number[];
  expect(qwen.decode(answerIds)).toBe('Four<|im_end|>');
});

test('of prompts with completions the completion is learned', async () => {
  const rows = [
    { prompt: 'Two plus two is', completion: ' four' },
    {
      prompt: [{ role: 'user', content: 'Hi' }],
      completion: [{ role: 'assistant', content: 'Ho' }],
    },
  ];
  const path = jsonl('completion.jsonl', rows);
  const dataset = await open(path, { packing: false });
  const completions = contents(dataset).map(({ learned }) =>
    qwen.decode(learned.filter((id) => id !== null) as number[]),
  );
  expect(completions).toEqual([' four<|im_end|>', 'Ho<|im_end|>\n']);
  expect(dataset.report?.blurred).toBe(0);
  const all = contents(await open(path, { packing: false, loss: 'all' }));
  expect(all[0]?.learned.filter((id) => id === null).length).toBe(1);
});

test('prompts that end inside a token are counted', async () => {
  const path = jsonl('blurred.jsonl', [{ prompt: 'the', completion: 're is' }]);
  const dataset = await open(path, { packing: false });
  expect(dataset.report?.blurred).toBe(1);
});

test('accepts rows of tokens, with or without labels', async () => {
  const rows = [
    { input_ids: [5, 6, 7], labels: [-100, -100, 9] },
    { input_ids: [5, 6, 7] },
    { input_ids: [1, 2], labels: [1, -100] },
  ];
  const dataset = await open(jsonl('ids.jsonl', rows), { packing: false });
  expect(contents(dataset)).toEqual([
    { ids: [5, 6, 7], learned: [null, null, 9] },
    { ids: [5, 6, 7], learned: [null, 6, 7] },
  ]);
  expect(dataset.report).toMatchObject({ rows: 3, unlearned: 1 });
});

test('rows that lose learned tokens by cutting are counted', async () => {
  const rows = [
    { prompt: words(60), completion: ' late' },
    { prompt: 'early', completion: ' yes' },
  ];
  const dataset = await open(jsonl('cut.jsonl', rows), { length: 32 });
  expect(dataset.report).toMatchObject({ rows: 2, unlearned: 1, cutRows: 1, samples: 1 });
  await expectRejection(
    () => open(jsonl('gone.jsonl', rows.slice(0, 1))),
    'DS_DATA',
    /1 without one/,
  );
});

test('packing loses and doubles nothing', async () => {
  const rows = Array.from({ length: 40 }, (_, i) => ({ text: words(1 + (i % 9), 10 * i) }));
  const path = jsonl('packed.jsonl', rows);
  const apart = contents(await open(path, { packing: false }));
  const packed = await open(path);
  const documents: string[] = [];
  for (let i = 0; i < packed.length; ++i) {
    const { ids, documents: numbers, labels, positions } = packed.get(i);
    expect(ids.length).toBe(64);
    for (let d = 0; d <= Math.max(...numbers); ++d) {
      const inside = [...ids.keys()].filter((t) => numbers[t] === d);
      if (inside.every((t) => labels[t] === -100)) continue;
      expect(inside.map((t) => positions[t])).toEqual([...inside.keys()]);
      documents.push(inside.map((t) => `${ids[t]}:${labels[t]}`).join());
    }
  }
  const fullTexts = apart.map(({ ids, learned }) =>
    ids.map((id, t) => `${id}:${learned[t] ?? -100}`).join(),
  );
  expect(documents.sort()).toEqual(fullTexts.sort());
  expect(packed.report).toMatchObject({ rows: 40, tokens: apart.flatMap(({ ids }) => ids).length });
  expect(packed.length).toBeLessThan(1.2 * Math.ceil((packed.report?.tokens as number) / 64));
});

test('patterns, folders and formats: jsonl, json, text, each file once', async () => {
  const deep = join(folder, 'globs', 'inner');
  mkdirSync(deep, { recursive: true });
  const write = (name: string, content: string): void =>
    writeFileSync(join(folder, 'globs', name), content);
  write('a.jsonl', '\n{"text":"one"}\r\n\n{"text":"two"}');
  write('b.json', '[{"text":"three"}]');
  write('inner/c.txt', 'four');
  write('inner/d.md', 'five');
  write('e.xlsx', 'no');
  const texts = async (files: string | string[]): Promise<string[]> => {
    const dataset = await open(files, { packing: false });
    return contents(dataset).map(({ ids }) => qwen.decode(ids.slice(0, -1)));
  };
  const at = (pattern: string): string => join(folder, 'globs', pattern);
  expect(await texts(at(''))).toEqual(['one', 'two', 'three', 'four', 'five']);
  expect(await texts(at('**/*.{txt,json}'))).toEqual(['three', 'four']);
  // A pattern of one folder does not look into its subfolders.
  const list = jest.spyOn(fs, 'readdirSync');
  expect(await texts(at('*.jsonl'))).toEqual(['one', 'two']);
  expect(list.mock.calls.map(([, options]) => options)).toEqual([
    { recursive: false, withFileTypes: true },
  ]);
  list.mockRestore();
  expect(await texts(at('?.jsonl'))).toEqual(['one', 'two']);
  expect(await texts([at('inner/*.md'), at('**/d.md'), at('b.json')])).toEqual(['five', 'three']);
  write('f{x}*.jsonl', '{"text":"six"}');
  write('fx.jsonl', '{"text":"seven"}');
  expect(await texts(at('f{x}*.jsonl'))).toEqual(['six']); // A name that is there is no pattern.
});

/** The columns of a list of 64-bit integers. */
const TOKEN_LISTS = [
  { name: 'root', num_children: 1 },
  { name: 'input_ids', repetition_type: 'OPTIONAL', converted_type: 'LIST', num_children: 1 },
  { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
  { name: 'element', type: 'INT64', repetition_type: 'OPTIONAL' },
];

/**
 * Parquet is written by another process: the writer is an ES module. `columns` is the code of its
 * columns.
 */
function parquet(name: string, columns: string, options: object = {}): string {
  const path = join(folder, name);
  const text = JSON.stringify({ filename: path, ...options });
  const script = `import('hyparquet-writer').then(({ parquetWriteFile }) =>
    parquetWriteFile({ ...${text}, columnData: ${columns} }))`;
  execFileSync(process.execPath, ['-e', script], { cwd: join(__dirname, '..', '..') });
  return path;
}

test('Parquet: row groups, nested messages, 64-bit tokens', async () => {
  const rows = Array.from({ length: 25 }, (_, i) => words(3, i));
  const column = `[{ name: 'text', data: ${JSON.stringify(rows)}, type: 'STRING' }]`;
  const path = parquet('text.parquet', column, { rowGroupSize: 10 });
  const lines = jsonl(
    'same.jsonl',
    rows.map((row) => ({ text: row })),
  );
  const expected = contents(await open(lines));
  expect(contents(await open(path))).toEqual(expected);
  expect(contents(await open(path, { threads: 2 }))).toEqual(expected);
  const messages = [
    { role: 'user', content: 'a' },
    { role: 'assistant', content: 'b' },
  ];
  const nested = `[{ name: 'messages', data: [${JSON.stringify(messages)}], type: 'JSON' }]`;
  const [chat] = contents(await open(parquet('chat.parquet', nested), { packing: false }));
  expect(chat?.ids).toEqual([...qwen.applyChatTemplate(messages).ids]);
  const lists = "[{ name: 'input_ids', data: [[5n, 6n, 7n], [8n, 9n]] }]";
  const tokens = await open(parquet('ids.parquet', lists, { schema: TOKEN_LISTS }), {
    packing: false,
  });
  expect(contents(tokens).map(({ ids }) => ids)).toEqual([
    [5, 6, 7],
    [8, 9],
  ]);
});

test('threads and cache change nothing; a damaged cache is replaced', async () => {
  // More than one part of 4 MiB, so that lines cross the borders of parts.
  const filler = 'x'.repeat(15_000);
  const rows = Array.from({ length: 600 }, (_, i) => ({ filler, text: words(1 + (i % 5), i) }));
  const path = jsonl('large.jsonl', rows);
  const plain = await open(path);
  expect(plain.report?.rows).toBe(600);
  const all = contents(plain);
  const cache = join(folder, 'cache');
  expect(contents(await open(path, { threads: 3, cache }))).toEqual(all);
  const files = readdirSync(cache);
  expect(files.length).toBe(3);
  expect(files.every((file) => file.endsWith('.tokens'))).toBe(true);
  const again = await open(path, { cache, timeoutMs: 1 });
  expect(again.report).toEqual(plain.report);
  expect(contents(again)).toEqual(all);
  const damaged = join(cache, files[1] as string);
  writeFileSync(damaged, readFileSync(damaged).fill(1, 100, 101));
  expect(contents(await open(path, { cache }))).toEqual(all);
  // Another tokenizer, another setting: other tokens under other names.
  await open(path, { cache, tokenizer: llama });
  await open(path, { cache, loss: 'all' });
  expect(readdirSync(cache).length).toBe(9);
});

test('worker threads of a loader serve the same samples', async () => {
  const rows = Array.from({ length: 30 }, (_, i) => ({ text: words(9, i) }));
  const dataset = await open(jsonl('loader.jsonl', rows));
  const serve = (numWorkers: number): string[] => {
    const workerThread = {
      execArgv: ['-r', join(__dirname, '..', 'support', 'run-typescript.cjs')],
    };
    const options = { batchSize: 2, numWorkers, seed: 3, workerThread };
    return Array.from(new data.DataLoader<text.TextSample>(dataset, options), (batch) => {
      const row = Array.from(batch.ids.toArray(), Number).join();
      for (const tensor of Object.values(batch)) tensor.dispose();
      return row;
    });
  };
  expect(serve(0).length).toBe(Math.ceil(dataset.length / 2));
  expect(serve(2)).toEqual(serve(0));
});

test('samples of different lengths become a batch', async () => {
  const path = jsonl('ragged.jsonl', [{ input_ids: [5, 6, 7] }, { input_ids: [8, 9] }]);
  const dataset = await open(path, { packing: false });
  const loader = new data.DataLoader<text.TextSample, text.TextBatch>(dataset, {
    batchSize: 2,
    shuffle: false,
    collate: text.collateSamples(0, 4),
  });
  const [batch] = [...loader] as [text.TextBatch];
  const flat = (key: keyof text.TextBatch): number[] => Array.from(batch[key].toArray(), Number);
  expect(batch.ids.shape).toEqual([2, 4]);
  expect(flat('ids')).toEqual([5, 6, 7, 0, 8, 9, 0, 0]);
  expect(flat('labels')).toEqual([-100, 6, 7, -100, -100, 9, -100, -100]);
  expect(flat('positions')).toEqual([0, 1, 2, 0, 0, 1, 0, 1]);
  expect(flat('documents')).toEqual([0, 0, 0, -1, 0, 0, -1, -1]);
  const targets = text.targetsOf(batch.labels);
  expect(Array.from(targets.toArray(), Number)).toEqual([6, 7, -100, -100, 9, -100, -100, -100]);
  for (const tensor of [...Object.values(batch), targets]) tensor.dispose();
});

describe('a stream', () => {
  const rows = Array.from({ length: 95 }, (_, i) => ({ text: words(1 + (i % 7), 5 * i) }));
  const files = (): string[] =>
    [0, 1, 2].map((n) =>
      jsonl(
        `stream${n}.jsonl`,
        rows.filter((_, i) => i % 3 === n),
      ),
    );
  const stream = (options: object = {}): Promise<text.TextStream> =>
    text.TextStream.open({
      files: files(),
      tokenizer: qwen,
      length: 32,
      threads: 0,
      shuffleBuffer: 20,
      seed: 7,
      ...options,
    });

  /** The rest of an epoch, or the first batches of it. */
  async function serveBatches(
    from: text.TextStream,
    limit = Number.POSITIVE_INFINITY,
  ): Promise<string[]> {
    const batches: string[] = [];
    for await (const batch of from) {
      const rowsOf = Array.from(batch.ids.toArray(), Number).join();
      batches.push(rowsOf);
      for (const tensor of Object.values(batch)) tensor.dispose();
      if (batches.length === limit) break;
    }
    return batches;
  }

  test('serves every row once per epoch, each epoch in another order', async () => {
    const textStream = await stream();
    const first = await serveBatches(textStream);
    const second = await serveBatches(textStream);
    expect(textStream.epoch).toBe(2);
    const tokens = (batches: string[]): number[] =>
      batches.flatMap((batch) => batch.split(',').map(Number)).sort((a, b) => a - b);
    const pad = qwen.padId as number;
    const keptTokens = (batches: string[]): number[] => tokens(batches).filter((id) => id !== pad);
    expect(keptTokens(first).join()).toBe(keptTokens(second).join());
    expect(first).not.toEqual(second);
    expect(textStream.report).toMatchObject({ rows: 2 * 95, unlearned: 0 });
    const fullValues = rows.flatMap(({ text: line }) =>
      [...qwen.encode(line), qwen.eosId as number].slice(0, 32),
    );
    expect(keptTokens(first).join()).toBe(fullValues.sort((a, b) => a - b).join());
    expect(await serveBatches(await stream({ threads: 2 }))).toEqual(first);
  });

  test.each([1, 4, 11])('continues after %d batches with the next one', async (count) => {
    const fullTexts = await serveBatches(await stream({ batchSize: 2 }));
    const stopped = await stream({ batchSize: 2 });
    const before = await serveBatches(stopped, count);
    const resumed = await stream({ batchSize: 2 });
    resumed.loadStateDict(JSON.parse(JSON.stringify(stopped.stateDict())));
    expect([...before, ...(await serveBatches(resumed))]).toEqual(fullTexts);
  });

  test('two ranks divide the samples of one, also from a saved position', async () => {
    const alone = await serveBatches(await stream());
    const pairs = await Promise.all(
      [0, 1].map(async (rank) => serveBatches(await stream({ rank, worldSize: 2 }))),
    );
    const even = alone.slice(0, alone.length - (alone.length % 2));
    expect(even.map((_, i) => pairs[i % 2]?.[i >> 1])).toEqual(even);
    const stopped = await stream();
    await serveBatches(stopped, 5);
    const resumed = await stream({ rank: 1, worldSize: 2 });
    resumed.loadStateDict(stopped.stateDict());
    expect((await serveBatches(resumed))[0]).toBe(alone[6]);
  });

  test('a running iteration continues at a loaded state', async () => {
    const fullTexts = await serveBatches(await stream());
    const textStream = await stream();
    const seen: string[] = [];
    let state: JsonObject | null = null;
    for await (const batch of textStream) {
      seen.push(Array.from(batch.ids.toArray(), Number).join());
      for (const tensor of Object.values(batch)) tensor.dispose();
      if (seen.length === 2) state = textStream.stateDict();
      if (seen.length === 4) textStream.loadStateDict(state as JsonObject);
    }
    expect(seen).toEqual([...fullTexts.slice(0, 4), ...fullTexts.slice(2)]);
    expect(textStream.epoch).toBe(1);
  });

  test('refuses a position of other data, and data that fill no batch', async () => {
    const other = await stream({ length: 48 });
    const state = (await stream()).stateDict();
    await expectRejection(
      async () => other.loadStateDict(state),
      'DS_CHECKPOINT',
      /length 48.*length 32/,
    );
    await expectRejection(
      async () => serveBatches(await stream({ batchSize: 500 })),
      'DS_DATA',
      /500 samples/,
    );
  });
});

describe('errors name the row', () => {
  const row = (content: string): string => {
    const path = join(folder, 'bad.jsonl');
    writeFileSync(path, `{"text":"fine"}\n\n${content}\n`);
    return path;
  };
  test.each<[string, () => unknown, string, RegExp]>([
    ['no JSON', () => open(row('{')), 'DS_DATA', /bad\.jsonl:3: expected a JSON object/],
    [
      'in a thread',
      () => open(row('{'), { threads: 1 }),
      'DS_DATA',
      /bad\.jsonl:3: expected a JSON object/,
    ],
    ['no object', () => open(row('[1]')), 'DS_DATA', /bad\.jsonl:3/],
    ['no known keys', () => open(row('{"content":"x"}')), 'DS_DATA', /messages.*content.*textKey/],
    ['a bad token', () => open(row('{"input_ids":[99999]}')), 'DS_DATA', /input_ids.*99999/],
    [
      'a label that is none',
      () => open(row('{"input_ids":[1,2],"labels":[1,-1]}')),
      'DS_DATA',
      /bad\.jsonl:3, labels: expected integers of \[0, \d+\) or -100, got -1/,
    ],
    [
      'tokens without a prompt',
      () => open(jsonl('bare.jsonl', [{ input_ids: [1, 2] }]), { loss: 'completion' }),
      'DS_DATA',
      /prompt and completion.*loss/,
    ],
    [
      'a pipe',
      () => {
        const path = join(folder, 'pipe.jsonl');
        execFileSync('mkfifo', [path]);
        return open(path, { cache: join(folder, 'pipe-cache') });
      },
      'DS_DATA',
      /pipe\.jsonl: expected a readable file, got a pipe/,
    ],
    [
      'labels too few',
      () => open(row('{"input_ids":[1,2],"labels":[1]}')),
      'DS_DATA',
      /2 labels.*got 1/,
    ],
    ['half a prompt', () => open(row('{"prompt":"a","completion":[]}')), 'DS_DATA', /two strings/],
    ['a bad chat', () => open(row('{"messages":[{"role":3}]}')), 'DS_DATA', /bad\.jsonl:3/],
    [
      'no assistant',
      () => open(row('{"text":"b"}'), { loss: 'assistant' }),
      'DS_DATA',
      /messages.*loss/,
    ],
    [
      'no mark',
      () =>
        open(row('{"messages":[{"role":"user","content":"x"}]}'), {
          tokenizer: llama,
          loss: 'all',
        }).then(() =>
          open(jsonl('m.jsonl', [{ messages: [{ role: 'user', content: 'x' }] }]), {
            tokenizer: llama,
            loss: 'assistant',
          }),
        ),
      'DS_DATA',
      /generation/,
    ],
    ['no file', () => open(join(folder, 'none*.jsonl')), 'DS_DATA', /at least one file/],
    ['no path', () => open(join(folder, 'none.jsonl')), 'DS_DATA', /a file or folder/],
    ['another format', () => open(__filename), 'DS_DATA', /\.jsonl.*dataset\.test\.ts/],
    [
      'a thread that takes too long',
      () => open(row('{"text":"b"}'), { threads: 1, timeoutMs: 1 }),
      'DS_DATA',
      /bad\.jsonl from 0: expected tokens from the thread of this part, got no answer for 1 ms/,
    ],
    [
      'no Parquet',
      () => {
        const path = join(folder, 'bad.parquet');
        writeFileSync(path, 'nothing here');
        return open(path, { threads: 1 });
      },
      'DS_DATA',
      /Parquet/,
    ],
    ['a length of 1', () => open(row('{}'), { length: 1 }), 'DS_ARGUMENT', /length.*at least 2/],
    ['an unknown option', () => open(row('{}'), { maxLength: 3 }), 'DS_ARGUMENT', /maxLength/],
    [
      'a bad choice',
      () => open(row('{}'), { overlong: 'wrap' }),
      'DS_ARGUMENT',
      /"cut", "split", "drop", got "wrap"/,
    ],
    ['no tokenizer', () => open(row('{}'), { tokenizer: null }), 'DS_ARGUMENT', /tokenizer/],
  ])('%s', (_, body, code, message) => expectRejection(async () => body(), code, message));
});

test('targets need rows of labels', () => {
  expect(() => text.targetsOf(Tensor.from([1, 2, 3], { dtype: 'i32' }))).toThrow(
    /targetsOf: expected labels \[B, T\], got \[3\] i32/,
  );
});
