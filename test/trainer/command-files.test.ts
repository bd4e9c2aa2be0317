// Runs `ds train` in this process on files as users have them: GGUF, base models without a chat
// template, tokenizers of other models.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initInference, nn, peft, seed, text } from '../../lib/index.js';
import { mergeFolder } from '../../lib/models/merge-folder.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { checkArguments } from '../../lib/trainer/command/check-arguments.js';
import { readArguments } from '../../lib/trainer/command/read-arguments.js';
import { train } from '../../lib/trainer/command/train.js';
import { refusal } from '../support/refusal.js';

const SIZES = { layers: 1, heads: 2, kvHeads: 1, channels: 32, hidden: 64, maxSeq: 64 };
const TEMPLATE =
  "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

let dir: string;
let printed: jest.SpyInstance;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-command-files-'));
  seed(1);
  const model = new nn.models.Llama({ vocabSize: 1007, ...SIZES, tied: true });
  const base = join(dir, 'base');
  await nn.saveWeights(model, base, { format: 'hf' });
  cpSync(join(packageRoot(), 'examples', 'tokenizer'), base, { recursive: true });
  const path = join(base, 'tokenizer_config.json');
  const { chat_template: _, ...config } = JSON.parse(readFileSync(path, 'utf8'));
  writeFileSync(path, JSON.stringify(config));
  await nn.saveGguf(model, join(dir, 'base.gguf'), { type: 'F32', tokenizer: base });
  const messages = [
    { role: 'user', content: 'Who starts the ranks?' },
    { role: 'assistant', content: 'The launcher does.' },
  ];
  writeFileSync(join(dir, 'chats.jsonl'), JSON.stringify({ messages }));
  writeFileSync(join(dir, 'template.jinja'), TEMPLATE);
});
afterAll(() => rmSync(dir, { recursive: true }));
beforeEach(() => {
  printed = jest.spyOn(console, 'log').mockImplementation(() => {});
});
afterEach(() => printed.mockRestore());

/** Runs one update of `ds train` with these arguments; paths are relative to `dir`. */
async function trainOnce(line: string): Promise<void> {
  const words = line.replaceAll('@', `${dir}/`).split(' ');
  const common = '--device cpu --max_steps 1 --disable_tqdm --save_strategy no --watch false';
  const { args } = await readArguments([...words, ...common.split(' ')]);
  await train(checkArguments(args));
}

const error = async (line: string): Promise<string> =>
  (await refusal(() => trainOnce(line))).message;

test('a GGUF file and a chat template become a folder with both', async () => {
  await trainOnce(
    '--model @base.gguf --data @chats.jsonl --output @tuned --chat_template_path @template.jinja --dataset_num_proc 0',
  );
  const tokenizer = text.Tokenizer.fromPretrained(join(dir, 'tuned'));
  const chat = tokenizer.chatText([{ role: 'user', content: 'Hi' }]);
  expect(chat).toBe('[user]Hi');
  const original = text.Tokenizer.fromPretrained(join(dir, 'base'));
  expect(tokenizer.encode('The ranks')).toEqual(original.encode('The ranks'));
  expect((await nn.models.fromPretrained(join(dir, 'tuned'))).maxSeq).toBe(64);
});

test('an adapter of a GGUF file opens with its base, and merges with its tokenizer', async () => {
  const model = await nn.models.fromPretrained(join(dir, 'base.gguf'));
  await peft.saveAdapter(peft.addLora(model, { r: 2 }), join(dir, 'adapter'));
  const engine = await initInference(join(dir, 'adapter'));
  const [answer] = await engine.generate({ prompt: [5, 6], maxNewTokens: 2, temperature: 0 });
  await engine.destroy();
  expect(answer?.tokens).toHaveLength(2);
  await mergeFolder({ base: join(dir, 'base.gguf'), adapter: join(dir, 'adapter') }, `${dir}/one`);
  expect(text.Tokenizer.fromPretrained(join(dir, 'one')).vocabSize).toBeGreaterThan(900);
});

test('a base model takes the chat template of another tokenizer, or its text', async () => {
  cpSync(join(dir, 'base'), join(dir, 'chat'), { recursive: true });
  writeFileSync(join(dir, 'chat', 'chat_template.jinja'), TEMPLATE);
  const common = '--model @base --data @chats.jsonl --dataset_num_proc 0 --no_sample';
  await trainOnce(`${common} --output @a --chat_template_path @chat`);
  await trainOnce(`${common} --output @b --chat-template {{messages[0]['content']}}`);
  const saved = ['a', 'b'].map((name) =>
    readFileSync(join(dir, name, 'chat_template.jinja'), 'utf8'),
  );
  expect(saved).toEqual([TEMPLATE, "{{messages[0]['content']}}"]);
  expect(await error(`${common} --output @c --chat_template_path @base`)).toMatch(
    /^--chat_template_path: expected a Jinja file, or a tokenizer with a chat template, got .*base, a tokenizer without one/,
  );
});

test('a base model without a chat template names the argument that sets one', async () => {
  const line = '--model @base --data @chats.jsonl --output @d --dataset_num_proc 0';
  expect(await error(line)).toMatch(
    /chats\.jsonl:1: expected a chat template "default" in .*base, got none\. .*--chat_template_path of ds train\.$/,
  );
});

test('a new model from a file of its configuration needs a tokenizer', async () => {
  const line = '--config_name @base/config.json --data @chats.jsonl --output @e';
  expect(await error(line)).toMatch(/^--tokenizer_name: expected .*Add --tokenizer_name/);
});

test('a tokenizer with more tokens than the model is refused before training', async () => {
  const config = JSON.parse(readFileSync(join(dir, 'base', 'config.json'), 'utf8'));
  writeFileSync(join(dir, 'small.json'), JSON.stringify({ ...config, vocab_size: 300 }));
  writeFileSync(join(dir, 'text.jsonl'), '{"text":"Which stage shards gradients?"}');
  const line =
    '--config_name @small.json --tokenizer_name @base --data @text.jsonl --output @f --dataset_num_proc 0';
  expect(await error(line)).toMatch(
    /^--tokenizer_name: expected tokens of \[0, 300\), as the model has, got token \d+ of .*base, a tokenizer with 1007 tokens\./,
  );
});

test.each([
  ['a.jsonl', '', /a\.jsonl: expected at least one row, got none: the file is empty\./],
  ['a.jsonl', '{"text":5}', /a\.jsonl:1: expected a string "text", got 5\./],
  ['a.jsonl', '{"frage":"a","antwort":"b"}', /Rename the keys as docs\/text\.md#rows lists them/],
  ['a.jsonl', '{"prompt":"a","chosen":"b","rejected":"c"}', /need a method .* --method dpo/],
  ['a.jsonl', '{"body":"a"}', /--dataset_text_field/],
  ['a.xlsx', 'text\na', /a\.xlsx: expected a file that ends in .* Save tables as CSV/],
  ['a.csv', 'body\na', /a\.csv:2: expected a row with text, .*--dataset_text_field/],
])('%s with %s says what to change', async (name, content, message) => {
  writeFileSync(join(dir, name), content);
  const line = `--model @base --data @${name} --output @g --dataset_num_proc 0`;
  expect(await error(line)).toMatch(message);
});

test('grpo leaves half of a small model to the prompts, and checks rewards before rows', async () => {
  writeFileSync(join(dir, 'prompts.jsonl'), JSON.stringify({ prompt: 'What is 2 + 2?' }));
  const line =
    '--method grpo --model @base --data @prompts.jsonl --output @i --num_generations 2 --per_device_train_batch_size 2';
  expect(await error(`${line} --reward_funcs ./none.mjs`)).toMatch(
    /^--reward_funcs \.\/none\.mjs: /,
  );
  const rewarded = `${line} --reward_funcs accuracy_reward`;
  expect(await error(`${rewarded} --max_completion_length 63`)).toMatch(
    /^PromptDataset\.open: expected a prompt of at most 1 tokens, got 1 longer prompts\. .*--max_completion_length/,
  );
  writeFileSync(join(dir, 'prompts.jsonl'), '{"prompt":"What is 2 + 2?","solution":"4"}');
  await trainOnce(rewarded);
});
