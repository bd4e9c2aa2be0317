// Tests proposals for requests with a format: texts are the same, and forced text takes fewer
// steps.
import { join } from 'node:path';
import { type inference, initInference, nn, seed, text } from '../../../lib/index.js';
import { packageRoot } from '../../../lib/runtime/package-root.js';
import { randomSchema } from './random-schemas.js';
import { Seeded } from './walk.js';

const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
const pages = { max_ragged_sequence_count: 4, kv_cache: { block_size: 16, blocks: 80 } };

async function generateAll(
  requests: readonly inference.GenerateRequest[],
  config: inference.InferenceConfig,
) {
  seed(11);
  const vocabSize = tokenizer.vocabSize + 3;
  const model = new nn.models.GPT2({
    vocabSize,
    maxSeq: 512,
    layers: 1,
    heads: 2,
    channels: 16,
  });
  const engine = await initInference(model, { ...pages, ...config }, { tokenizer });
  const found = (await engine.generateBatch(requests)).flat();
  const stats = engine.stats();
  await engine.destroy();
  for (const parameter of model.parameters()) parameter.dispose();
  const shown = found.map(({ text, tokens, finishReason }) => ({ text, tokens, finishReason }));
  return { shown, stats };
}

const speculative = { num_speculative_tokens: 5, prompt_lookup_min: 1 };

test.each([
  ['', {}],
  [', ahead of the host', { async_scheduling: true }],
])('texts of formats are the same with proposals%s', async (_, config) => {
  const formats: inference.Format[] = [
    { choice: ['a long text that is forced', 'other'] },
    { regex: 'The answer is (yes|no)\\.' },
    { grammar: 'root ::= "(" root ")" | [0-9]{1,3}' },
    ...Array.from({ length: 6 }, (_, value) => randomSchema(new Seeded(value)) as inference.Format),
  ];
  const requests = formats.flatMap((format, i): inference.GenerateRequest[] => [
    { prompt: 'Hello', seed: i, temperature: 1.5, format, maxNewTokens: 80 },
    { prompt: 'Hello (((', temperature: 0, format, maxNewTokens: 60, minTokens: 2 },
    { prompt: 'Hello', temperature: 0, repetitionPenalty: 1.1, format, maxNewTokens: 20 },
  ]);
  const plain = { prompt: 'no format', temperature: 0, maxNewTokens: 40 };
  const all = [...requests, plain, { ...plain, seed: 3, temperature: 1 }];
  const expected = await generateAll(all, {});
  const { shown, stats } = await generateAll(all, { speculative, ...config });
  expect(shown).toEqual(expected.shown);
  expect(stats.acceptedTokens).toBeGreaterThan(20);
});

test('a step jumps forward over forced text', async () => {
  // The bias makes the model prefer the tokens of the tokenizer.
  const forced = 'The quick brown fox jumps over the lazy dog';
  const tokens = tokenizer.encode(forced, { addSpecialTokens: false });
  const logitBias = Object.fromEntries(Array.from(tokens, (token) => [token, 50]));
  const format = { choice: [forced] };
  const requests = [{ prompt: 'x', temperature: 0, format, logitBias, maxNewTokens: 60 }];
  const expected = await generateAll(requests, {});
  const { shown, stats } = await generateAll(requests, { speculative });
  expect(shown).toEqual(expected.shown);
  expect(shown[0]?.text).toBe(forced);
  expect(stats.steps).toBeLessThan(0.7 * expected.stats.steps);
});
