// Tests response_format and structured_outputs with a tiny random model: answers have the format.
import { join } from 'node:path';
import { initInference, nn, seed, text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { serve } from '../../lib/serve/index.js';
import { ask } from './client.js';

const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
const { vocabSize } = tokenizer;
const pages = { max_ragged_sequence_count: 4, kv_cache: { block_size: 16, blocks: 80 } };
const schema = {
  type: 'object',
  properties: {
    city: { enum: ['Rome', 'Oslo'] },
    days: { type: 'integer', maximum: 9, minimum: 1 },
  },
  required: ['city', 'days'],
  additionalProperties: false,
};
const trip = /^\{\s*"city":\s*"(Rome|Oslo)",\s*"days":\s*[1-9]\s*\}$/;
const sampled = { max_tokens: 200, temperature: 1.5, seed: 3 };

test('answers of chats and completions have the format', async () => {
  seed(4);
  const model = new nn.models.GPT2({ vocabSize, maxSeq: 512, layers: 1, heads: 2, channels: 16 });
  const engine = await initInference(model, pages, { tokenizer });
  const template = '{% for message in messages %}{{ message.content }}{% endfor %}';
  const server = await serve(engine, { port: 0, chatTemplate: template });
  const { url } = server;
  try {
    const messages = [{ role: 'user', content: 'Hello' }];
    const jsonSchema = { name: 'trip', strict: true, schema };
    const response = await ask(`${url}/v1/chat/completions`, {
      body: {
        messages,
        ...sampled,
        n: 2,
        response_format: { type: 'json_schema', json_schema: jsonSchema },
      },
    });
    expect(response.json.choices).toHaveLength(2);
    for (const { message, finish_reason } of response.json.choices) {
      expect(message.content).toMatch(trip);
      expect(finish_reason).toBe('stop');
    }
    const formats: [object, RegExp][] = [
      [{ json: JSON.stringify(schema) }, trip],
      [{ regex: 'a{2}|b' }, /^(aa|b)$/],
      [{ choice: ['x y', 'z'] }, /^(x y|z)$/],
      [{ grammar: 'root ::= [0-9] root?' }, /^\d+$/],
    ];
    for (const [structured_outputs, expected] of formats) {
      const reply = await ask(`${url}/v1/completions`, {
        body: { prompt: 'Hello', ...sampled, structured_outputs },
      });
      expect(reply.json.choices[0].text).toMatch(expected);
    }
  } finally {
    await server.kill();
  }
  await engine.destroy();
});
