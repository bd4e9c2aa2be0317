// Training on answers: the end-of-turn token, and further keys of messages.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from '../../lib/index.js';
import { emptyFolder, folderWith, removeFolders } from './folders.js';

const QWEN = join(__dirname, '..', 'golden', 'transformers', 'tokenizers', 'qwen2');
const warned = jest.spyOn(process, 'emitWarning').mockImplementation();

afterAll(removeFolders);
beforeEach(() => warned.mockClear());

const START = '{% for m in messages %}<|im_start|>{{ m.role }}\n';
const END = '{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}';
/** The end-of-turn token is outside of the marks, or inside. */
const OUTSIDE = `${START}{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>\n${END}`;
const INSIDE = `${START}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n${END}`;

const messages = [{ role: 'assistant', content: 'Four' }];

function optionsFor(template: string, rows: readonly object[], loss: text.LossKind) {
  const folder = folderWith(QWEN, { config: { chat_template: template, eos_token: '<|im_end|>' } });
  const files = join(emptyFolder(), 'rows.jsonl');
  writeFileSync(files, rows.map((row) => JSON.stringify(row)).join('\n'));
  return { files, tokenizer: folder.path, length: 64, threads: 0, loss };
}

const MESSAGE = /in 2 of 3 rows, the special token behind an answer is not learned/;

test('a dataset warns if the end-of-turn token is outside of the answers', async () => {
  const rows = [{ messages }, { messages }, { input_ids: [1, 2], assistant_masks: [0, 1] }];
  const dataset = await text.TextDataset.open(optionsFor(OUTSIDE, rows, 'assistant'));
  expect(dataset.report?.unended).toBe(2);
  expect(warned.mock.calls).toEqual([
    [expect.stringMatching(MESSAGE), { type: 'DsWarning', code: 'DS_DATA' }],
  ]);
});

test.each<[string, string, text.LossKind]>([
  ['the token is inside', INSIDE, 'assistant'],
  ['all tokens are learned', OUTSIDE, 'all'],
])('there is no warning if %s', async (_, template, loss) => {
  const dataset = await text.TextDataset.open(optionsFor(template, [{ messages }], loss));
  expect(dataset.report?.unended).toBe(0);
  expect(warned).not.toHaveBeenCalled();
});

test('a stream warns once, on the first rank', async () => {
  for (const [rank, count] of [
    [0, 1],
    [1, 0],
  ] as const) {
    const options = optionsFor(OUTSIDE, [{ messages }, { messages }], 'assistant');
    const stream = await text.TextStream.open({ ...options, packing: false, rank, worldSize: 2 });
    for (let epoch = 0; epoch < 2; ++epoch) for await (const batch of stream) batch.ids.dispose();
    expect(warned).toHaveBeenCalledTimes(count);
    warned.mockClear();
  }
});

test('the mask finds tokens that take white space of any script', () => {
  const token = { id: 999, content: '<m>', lstrip: true, normalized: false };
  const folder = folderWith(QWEN, {
    config: { chat_template: INSIDE },
    edit: (tokenizer) => tokenizer.added_tokens.push(token),
  });
  const tokenizer = text.Tokenizer.fromPretrained(folder.path);
  const messages = [{ role: 'assistant', content: 'a\u3000\u0085<m>b' }];
  const { ids, assistant } = tokenizer.applyChatTemplate(messages, { assistantMask: true });
  expect([...ids].indexOf(999)).toBeGreaterThan(0);
  expect(assistant?.[[...ids].indexOf(999)]).toBe(1);
});

const REASONS =
  '{% for m in messages %}{{ m.role }}({{ m.reasoning_content or "-" }}){{ m.content }};{% endfor %}';

test('reasoning_content of a row reaches the template, in all forms of rows', async () => {
  const thought = { reasoning_content: 'why' };
  const asked = { role: 'user', content: 'Q' };
  const answer = { role: 'assistant', content: 'A', ...thought };
  const rows = [
    { messages: [asked, answer] },
    {
      conversations: [
        { from: 'human', value: 'Q' },
        { from: 'gpt', value: 'A', ...thought },
      ],
    },
    { prompt: [asked], completion: [answer] },
  ];
  const options = { ...optionsFor(REASONS, rows, 'all'), packing: false };
  const dataset = await text.TextDataset.open(options);
  const tokenizer = text.Tokenizer.fromPretrained(options.tokenizer);
  const texts = rows.map((_, i) => tokenizer.decode(dataset.get(i).ids));
  expect(texts).toEqual(rows.map(() => 'user(-)Q;assistant(why)A;'));
});
