// generate() and stream() with messages and a format: reasoning apart, and the format after it.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type inference, initInference, nn, seed, text } from '../../lib/index.js';
import { separateReasoning } from '../../lib/inference/piece-queue.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

const TEMPLATE = `{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}`;
const messages = [{ role: 'user', content: 'Hello' }];
const format = { choice: ['yes', 'no'] };
const pages = { max_ragged_sequence_count: 4, kv_cache: { block_size: 16, blocks: 40 } };

let dir: string;
let engine: inference.InferenceEngine;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-held-'));
  cpSync(join(packageRoot(), 'examples', 'tokenizer'), dir, { recursive: true });
  const file = join(dir, 'tokenizer_config.json');
  const config = JSON.parse(readFileSync(file, 'utf8'));
  writeFileSync(file, JSON.stringify({ ...config, chat_template: TEMPLATE }));
  rmSync(join(dir, 'chat_template.jinja'), { force: true });
  const tokenizer = text.Tokenizer.fromPretrained(dir);
  seed(3);
  const sizes = { maxSeq: 256, layers: 1, heads: 2, channels: 16 };
  const model = new nn.models.GPT2({ vocabSize: tokenizer.vocabSize, ...sizes });
  engine = await initInference(model, pages, { tokenizer });
});
afterAll(async () => {
  await engine.destroy();
  rmSync(dir, { recursive: true });
});

test('in open reasoning the model writes freely: its text is reasoning until the end tag', async () => {
  const request = { messages, format, maxNewTokens: 40, temperature: 1.5, seed: 1 };
  const [made] = await engine.generate(request);
  expect(made).toMatchObject({ text: '', finishReason: 'length' });
  expect(made?.reasoning).not.toBe('');
  let streamed = '';
  for await (const piece of engine.stream(request)) {
    expect(piece.text).toBe('');
    streamed += piece.reasoning ?? '';
  }
  expect(streamed).toBe(made?.reasoning);
});

test('without reasoning the text has the format at once', async () => {
  const variables = { enable_thinking: false };
  const request = { messages, format, variables, maxNewTokens: 40, seed: 1 };
  const [[made], [same]] = await Promise.all([
    engine.generate(request),
    engine.generateBatch([request]).then(([one]) => one ?? []),
  ]);
  expect(made?.text).toMatch(/^(yes|no)$/);
  expect(made).not.toHaveProperty('reasoning');
  expect(same?.text).toBe(made?.text);
});

test('pieces of several answers are parsed separately, at every cut', async () => {
  const fullText = 'a <b> thought</think>\n\nyes';
  const form = {
    family: null,
    tools: [],
    isTrimmed: true,
    reasoning: { begin: '<think>', end: '</think>' },
  };
  const reading = { form, promptEnd: '<think>\n' };
  for (let at = 0; at <= fullText.length; ++at) {
    const parts = [fullText.slice(0, at), fullText.slice(at)];
    const pieces = parts.flatMap((part, i) =>
      [0, 1].map((index) => {
        const finishReason = i === 1 ? ('stop' as const) : null;
        return { index, text: part, tokens: [i], finishReason, cachedTokens: 0 };
      }),
    );
    async function* all() {
      yield* pieces;
    }
    const found = ['', ''];
    const thoughts = ['', ''];
    for await (const generationPiece of separateReasoning(all(), { reading })) {
      found[generationPiece.index] += generationPiece.text;
      thoughts[generationPiece.index] += generationPiece.reasoning ?? '';
    }
    expect([found, thoughts]).toEqual([
      ['yes', 'yes'],
      ['a <b> thought', 'a <b> thought'],
    ]);
  }
});
