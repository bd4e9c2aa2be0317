// Embeddings and rankings over HTTP, of tiny encoders and a pooled decoder, with OpenAI's package.
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { EncoderEngine } from '../../lib/serve/encoder-engine.js';
import { openServed, serve } from '../../lib/serve/index.js';
import { ask } from './client.js';

// biome-ignore lint/suspicious/noExplicitAny: programs in plain JavaScript use it so.
const { OpenAI } = require('openai') as any;

const folder = mkdtempSync(join(tmpdir(), 'ds-encoders-'));
afterAll(() => rmSync(folder, { recursive: true }));

const BERT = {
  model_type: 'bert',
  vocab_size: 1007,
  hidden_size: 32,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  intermediate_size: 64,
  max_position_embeddings: 64,
  type_vocab_size: 2,
  pad_token_id: 0,
};
const LLAMA = {
  model_type: 'llama',
  vocab_size: 1007,
  hidden_size: 32,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  intermediate_size: 64,
  max_position_embeddings: 64,
};

/** Saves a random model with the tokenizer of the examples. */
async function saveModel(name: string, model: nn.models.TaskModel): Promise<string> {
  const dir = join(folder, name);
  await model.save(dir);
  cpSync(join(packageRoot(), 'examples', 'tokenizer'), dir, { recursive: true });
  return dir;
}

/** Runs `body` with a server of the folder's model, and its engine. */
async function withEncoder(
  dir: string,
  body: (url: string, engine: EncoderEngine) => Promise<void>,
): Promise<void> {
  const engine = await openServed(dir, { config: { device: 'cpu' } });
  if (!(engine instanceof EncoderEngine)) throw new Error('a generator');
  const server = await serve(engine, { port: 0, model: 'tiny' });
  try {
    await body(`${server.url}/v1`, engine);
  } finally {
    await server.kill();
    await engine.destroy();
  }
}

const TEXTS = ['A cat sleeps.', 'Rain', 'A dog barks at the cat in the garden.'];

test.each([
  ['an encoder', BERT],
  ['a pooled decoder', LLAMA],
])('embeddings of %s', async (name, config) => {
  const model = nn.models.fromConfig(config, { task: 'embedding' });
  const dir = await saveModel(name, model);
  const expected = (await nn.models.fromPretrained(dir, { task: 'embedding' })).embed(TEXTS);
  await withEncoder(dir, async (url, { tokenizer }) => {
    const client = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 });
    // The package asks for base64 by itself, and decodes it.
    const { data, usage } = await client.embeddings.create({ model: 'tiny', input: TEXTS });
    for (const [i, { embedding, index }] of data.entries()) {
      expect(index).toBe(i);
      expect(embedding).toHaveLength(32);
      for (const [j, value] of embedding.entries()) {
        expect(value).toBeCloseTo(expected[i]?.[j] as number, 4);
      }
    }
    const count = TEXTS.reduce((sum, text) => sum + tokenizer.encode(text).length, 0);
    expect(usage).toEqual({ prompt_tokens: count, total_tokens: count });
    const cut = await client.embeddings.create({
      model: 'tiny',
      input: TEXTS[0],
      encoding_format: 'float',
      dimensions: 8,
    });
    const [{ embedding }] = cut.data;
    expect(Math.hypot(...embedding)).toBeCloseTo(1, 5);
    expect(embedding[0] * data[0].embedding[1]).toBeCloseTo(
      ...([embedding[1] * data[0].embedding[0], 4] as const),
    );
    const tokens = await client.embeddings.create({
      model: 'tiny',
      input: [[...tokenizer.encode('Rain')]],
    });
    expect(tokens.data[0].embedding[3]).toBeCloseTo(data[1].embedding[3], 5);
    const odd: [object, string][] = [
      [{ input: [] }, 'input'],
      [{ input: '' }, 'input'],
      [{ input: 'word '.repeat(200) }, 'input'],
      [{ input: 'x', dimensions: 33 }, 'dimensions'],
      [{ input: 'x', encoding_format: 'hex' }, 'encoding_format'],
    ];
    for (const [fields, param] of odd) {
      await expect(client.embeddings.create({ model: 'tiny', ...fields })).rejects.toMatchObject({
        status: 400,
        param,
      });
    }
    const messages = [{ role: 'user', content: 'x' }];
    await expect(client.chat.completions.create({ model: 'tiny', messages })).rejects.toThrow(
      /it generates no text; this model answers \/v1\/embeddings/,
    );
    const { status } = await ask(`${url}/rerank`, { body: { query: 'a', documents: ['b'] } });
    expect(status).toBe(400);
  });
});

test('a ranking', async () => {
  const config = { ...BERT, num_labels: 1 };
  const task = 'sequence-classification';
  const dir = await saveModel('ranking', nn.models.fromConfig(config, { task, labels: 1 }));
  await withEncoder(dir, async (url) => {
    const body = { model: 'tiny', query: 'Which animal barks?', documents: TEXTS };
    const { json } = await ask(`${url}/rerank`, { body });
    const { json: cohere } = await ask(`${url.replace(/1$/, '2')}/rerank`, { body });
    expect(cohere.results).toEqual(json.results);
    const scores = json.results.map(
      (result: { relevance_score: number }) => result.relevance_score,
    );
    expect(scores).toEqual([...scores].sort((a, b) => b - a));
    expect(scores.every((score: number) => score > 0 && score < 1)).toBe(true);
    for (const { index, document } of json.results) expect(document.text).toBe(TEXTS[index]);
    const reply = await ask(`${url}/rerank`, { body: { ...body, top_n: 1 } });
    expect(reply.json.results).toEqual(json.results.slice(0, 1));
    // A document alone has the same score: padding does not count.
    const alone = await ask(`${url}/rerank`, { body: { ...body, documents: TEXTS.slice(1, 2) } });
    const same = json.results.find(({ index }: { index: number }) => index === 1);
    expect(alone.json.results[0].relevance_score).toBeCloseTo(same.relevance_score, 5);
    const odd = await ask(`${url}/rerank`, { body: { ...body, documents: [5] } });
    expect([odd.status, odd.json.error.param]).toEqual([400, 'documents[0]']);
  });
});

test('a classifier of several labels is refused', async () => {
  const task = 'sequence-classification';
  const dir = await saveModel('labels', nn.models.fromConfig(BERT, { task, labels: 3 }));
  await expect(openServed(dir, { config: { device: 'cpu' } })).rejects.toThrow(
    /a model that generates, embeds, or ranks by one label, got .* with 3 labels/,
  );
});
