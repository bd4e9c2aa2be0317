// How many inputs and documents one request may have.
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { openServed, serve } from '../../lib/serve/index.js';
import { ask } from './client.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-encoder-bounds-'));
afterAll(() => rmSync(folder, { recursive: true }));

const BERT = {
  model_type: 'bert',
  vocab_size: 1007,
  hidden_size: 8,
  num_hidden_layers: 1,
  num_attention_heads: 1,
  intermediate_size: 8,
  max_position_embeddings: 16,
  type_vocab_size: 2,
  pad_token_id: 0,
};

/** The status, and the wrong field, of requests to a model. */
async function answers(
  model: nn.models.TaskModel,
  route: string,
  bodies: readonly object[],
): Promise<unknown[]> {
  const dir = join(folder, route);
  await model.save(dir);
  cpSync(join(packageRoot(), 'examples', 'tokenizer'), dir, { recursive: true });
  const engine = await openServed(dir, { config: { device: 'cpu' } });
  const server = await serve(engine, { port: 0, model: 'tiny' });
  try {
    const found: unknown[] = [];
    for (const body of bodies) {
      const { status, json } = await ask(`${server.url}/v1/${route}`, {
        body: { model: 'tiny', ...body },
      });
      found.push([status, json.error?.param ?? null]);
    }
    return found;
  } finally {
    await server.kill();
    await engine.destroy();
  }
}

test('2,048 inputs are embedded, and not one more', async () => {
  const model = nn.models.fromConfig(BERT, { task: 'embedding' });
  const inputs = (count: number) => ({ input: Array.from({ length: count }, () => [1]) });
  expect(await answers(model, 'embeddings', [inputs(2048), inputs(2049)])).toEqual([
    [200, null],
    [400, 'input'],
  ]);
});

test('1 to 2,048 documents are ranked', async () => {
  const task = 'sequence-classification';
  const model = nn.models.fromConfig({ ...BERT, num_labels: 1 }, { task, labels: 1 });
  const rankBody = (count: number) => ({ query: 'a', documents: Array(count).fill('b') });
  expect(await answers(model, 'rerank', [0, 1, 2049].map(rankBody))).toEqual([
    [400, 'documents'],
    [200, null],
    [400, 'documents'],
  ]);
});
