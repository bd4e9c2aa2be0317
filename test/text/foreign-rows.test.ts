// Rows as other programs write them: conversations of ShareGPT and TRL, .json by lines.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { text } from '../../lib/index.js';
import { emptyFolder, expectRejection, folderWith, removeFolders } from './folders.js';

const TOKENIZERS = join(__dirname, '..', 'golden', 'transformers', 'tokenizers');
const qwen = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'qwen2'));
const folder = emptyFolder();

afterAll(removeFolders);

function jsonl(name: string, rows: readonly object[]): string {
  const path = join(folder, name);
  writeFileSync(path, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  return path;
}

/** The tokens of each row of a file, without padding. */
async function tokens(files: string, options: object = {}): Promise<number[][]> {
  const settings = { files, tokenizer: qwen, length: 256, threads: 0, packing: false, ...options };
  const dataset = await text.TextDataset.open(settings);
  return Array.from({ length: dataset.length }, (_, i) => [...dataset.get(i).ids]);
}

test('conversations of ShareGPT become those of its roles', async () => {
  const messages = [
    { role: 'system', content: 'Be short.' },
    { role: 'user', content: 'Two plus two?' },
    { role: 'assistant', content: 'Four' },
  ];
  const talk = [
    { from: 'human', value: 'Two plus two?' },
    { from: 'gpt', value: 'Four' },
  ];
  const path = jsonl('sharegpt.jsonl', [
    { messages },
    { conversations: [{ from: 'system', value: 'Be short.' }, ...talk] },
    { id: 'x', conversations: talk, system: 'Be short.' },
    { conversations: messages },
    {
      prompt: [{ from: 'system', value: 'Be short.' }, ...talk.slice(0, 1)],
      completion: talk.slice(1),
    },
  ]);
  const [ids, ...others] = await tokens(path);
  expect(ids).toEqual([...qwen.applyChatTemplate(messages).ids]);
  expect(others).toEqual([ids, ids, ids, ids]);
});

test('rows of several kinds in one table have null for the columns of the others', async () => {
  const none = { text: null, messages: null, conversations: null, input_ids: null, labels: null };
  const messages = [{ role: 'user', content: 'Two plus two?' }];
  const talk = [{ from: 'human', value: 'Two plus two?' }];
  const kinds = [
    { text: 'Four' },
    { messages },
    { conversations: talk },
    { input_ids: [5, 6, 7] },
    { prompt: 'Two plus two?', completion: ' Four' },
  ];
  const alone = await tokens(jsonl('alone.jsonl', kinds));
  const table = kinds.map((row) => ({ ...none, prompt: null, completion: null, ...row }));
  expect(await tokens(jsonl('table.jsonl', table))).toEqual(alone);
});

test('tools may be JSON, and other keys of a row reach the template', async () => {
  const messages = [
    { role: 'user', content: 'Weather?' },
    { role: 'assistant', content: 'Rain' },
  ];
  const tools = [{ type: 'function', function: { name: 'weather', parameters: {} } }];
  const rows = [
    { messages, tools },
    { messages, tools: JSON.stringify(tools) },
  ];
  const plain = [{ messages, tools: null }, { messages, tools: '' }, { messages }];
  const path = jsonl('tools.jsonl', [...rows, ...plain]);
  const [list, json, ...none] = await tokens(path);
  expect(list).toEqual([...qwen.applyChatTemplate(messages, { tools }).ids]);
  expect(json).toEqual(list);
  expect(none).toEqual(none.map(() => [...qwen.applyChatTemplate(messages).ids]));
  expect(none[0]).not.toEqual(list);

  const template = '{{ messages[0].content }}{% if short %} briefly{% endif %}';
  const { path: tokenizer, write } = folderWith(join(TOKENIZERS, 'qwen2'), {});
  write('chat_template.jinja', template);
  const reported = jsonl('told.jsonl', [{ messages, chat_template_kwargs: { short: true } }]);
  const [own] = await tokens(reported, { tokenizer });
  expect(qwen.decode(own as number[])).toBe('Weather? briefly');
});

test('.json has an array of rows, or a row on each line', async () => {
  const path = join(folder, 'lines.json');
  const texts = async (content: string): Promise<string[]> => {
    writeFileSync(path, content);
    return (await tokens(path)).map((ids) => qwen.decode(ids.slice(0, -1)));
  };
  const rows = ['{"text":"one"}', '{"text":"two"}'];
  expect(await texts(rows.join('\n'))).toEqual(['one', 'two']);
  expect(await texts(`\uFEFF \n${rows.join('\n\n')}\n`)).toEqual(['one', 'two']);
  expect(await texts(`\uFEFF \n[${rows.join()}]`)).toEqual(['one', 'two']);
  await expectRejection(
    () => texts('{\n"data": [{"text":"one"}]\n}'),
    'DS_DATA',
    /lines\.json:1: expected a JSON object, .* in one array \(\.json\)/,
  );
});

describe('rows of published instruction sets', () => {
  const user = 'Name the capital.\n\nFrance';
  const rows = [
    { instruction: 'Name the capital.', input: 'France', output: 'Paris' },
    { instruction: 'Name the capital.', context: 'France', response: 'Paris', category: 'qa' },
    { question: user, answer: 'Paris' },
    { query: user, response: 'Paris', type: 'x' },
    { input: user, output: 'Paris' },
    { instruction: 'Name the capital.', input: 'France', output: 'Paris', history: [] },
  ];

  test('are chats with a chat template, and learn the answer', async () => {
    const messages = [
      { role: 'user', content: user },
      { role: 'assistant', content: 'Paris' },
    ];
    const path = jsonl('alpaca.jsonl', [...rows, { messages }]);
    const all = await tokens(path);
    expect(new Set(all.map((ids) => ids.join())).size).toBe(1);
    const instructions = jsonl('alpaca-only.jsonl', rows);
    for (const loss of [undefined, 'completion', 'assistant'] as const) {
      const options = { files: instructions, tokenizer: qwen, length: 256, threads: 0, loss };
      const dataset = await text.TextDataset.open({ ...options, packing: false });
      const { ids, labels } = dataset.get(0);
      const learned = [...ids].filter((_, i) => labels[i] !== -100);
      expect(qwen.decode(learned)).toMatch(/^Paris/);
    }
  });

  test('keep the system prompt', async () => {
    const row = { system_prompt: 'Be short.', question: 'Two?', response: '2' };
    const [ids] = await tokens(jsonl('orca.jsonl', [row]));
    const chat = [
      { role: 'system', content: 'Be short.' },
      { role: 'user', content: 'Two?' },
      { role: 'assistant', content: '2' },
    ];
    expect(ids).toEqual([...qwen.applyChatTemplate(chat).ids]);
  });

  test('are texts without a chat template', async () => {
    const base = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'gpt2'));
    const path = jsonl('base.jsonl', [...rows, { prompt: `${user}\n\n`, response: 'Paris' }]);
    const all = await tokens(path, { tokenizer: base });
    expect(all.map((ids) => base.decode(ids, { skipSpecialTokens: true }))).toEqual(
      all.map(() => `${user}\n\nParis`),
    );
  });

  test('give way to a text column', async () => {
    const path = jsonl('text.jsonl', [{ ...rows[0], text: 'whole' }]);
    const [ids] = await tokens(path);
    expect(qwen.decode(ids as number[], { skipSpecialTokens: true })).toBe('whole');
  });

  test('have prompts for rewards, and keep the answer as a column', async () => {
    const { get } = await text.PromptDataset.open({
      tokenizer: qwen,
      rows: [{ question: 'Two?', answer: '2' }],
    }).then((set) => ({ get: (i: number) => set.get(i) }));
    expect(get(0)).toMatchObject({
      prompt: [{ role: 'user', content: 'Two?' }],
      columns: { answer: '2' },
    });
  });
});

test('preferences of published sets keep their prompt', async () => {
  const user = { role: 'user', content: 'Two?' };
  const [good, bad] = ['2', '3'].map((content) => ({ role: 'assistant', content }));
  const rows = [
    { prompt: [user], chosen: [good], rejected: [bad] },
    // UltraFeedback: the prompt as text, and whole conversations.
    { prompt: 'Two?', chosen: [user, good], rejected: [user, bad], score_chosen: 9 },
    { prompt: 'Two?', chosen: [good], rejected: [bad] },
    // Orca's pairs.
    { question: 'Two?', chosen: '2', rejected: '3' },
    // ShareGPT.
    {
      conversations: [{ from: 'human', value: 'Two?' }],
      chosen: { from: 'gpt', value: '2' },
      rejected: { from: 'gpt', value: '3' },
    },
  ];
  const pairs = await text.PairDataset.open({ tokenizer: qwen, rows });
  const all = rows.map((_, i) => pairs.get(i));
  expect(all).toEqual(all.map(() => all[0]));
  expect(qwen.decode(all[0]?.chosen.slice(all[0].prompt) ?? [])).toMatch(/^2/);

  // Whole texts repeat their question.
  const whole = { question: 'Two?', chosen: 'Q: Two? A: 2', rejected: 'Q: Two? A: 3' };
  const texts = await text.PairDataset.open({ tokenizer: qwen, rows: [whole] });
  const { chosen, prompt } = texts.get(0);
  expect(qwen.decode(chosen.slice(0, prompt))).toBe('Q: Two? A:');

  const answers = await text.UnpairedDataset.open({
    tokenizer: qwen,
    rows: [{ instruction: 'Two?', output: '2', label: true }],
  });
  expect(answers.get(0).ids).toEqual(all[0]?.chosen);
});

test('preferences of mixed kinds are refused with the kind of each key', async () => {
  const rows = [{ prompt: 'Two?', chosen: 'a', rejected: ['b'], score: 1 }];
  await expectRejection(
    () => text.PairDataset.open({ tokenizer: qwen, rows }),
    'DS_DATA',
    /row 0: .* got a row with prompt \(string\), chosen \(string\), rejected \(list\), score \(number\)\. docs/,
  );
});

test.each([
  [
    'a speaker of no role',
    '{"conversations":[{"from":"observation","value":"x"}]}',
    /bad\.jsonl:3: expected "from" of human, .*, got "observation"/,
  ],
  [
    'a speaker with the name of an inherited property',
    '{"conversations":[{"from":"constructor","value":"x"}]}',
    /bad\.jsonl:3: expected "from" of human, .*, got "constructor"/,
  ],
  [
    'tools that are none',
    '{"messages":[{"role":"user","content":"x"}],"tools":"weather"}',
    /bad\.jsonl:3: expected tools as a list, or as the JSON of one, got "weather"/,
  ],
  [
    'variables that are none',
    '{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":1}',
    /bad\.jsonl:3: expected an object under chat_template_kwargs, got 1/,
  ],
  [
    'a history of earlier turns',
    '{"instruction":"a","input":"","output":"b","history":[["c","d"]]}',
    /bad\.jsonl:3: expected a row with text, .* Write rows with a history as messages/,
  ],
])('%s is refused with the place', async (_, content, message) => {
  const path = join(folder, 'bad.jsonl');
  writeFileSync(path, `{"text":"fine"}\n\n${content}\n`);
  await expectRejection(() => tokens(path), 'DS_DATA', message);
});
