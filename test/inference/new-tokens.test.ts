// How many new tokens a request gets without maxNewTokens.
import { join } from 'node:path';
import { initInference, nn, seed, text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

const sizes = { vocabSize: 61, maxSeq: 64, layers: 2, heads: 2, channels: 16 };
const small = { kv_cache: { block_size: 16, blocks: 12 } };
const prompt = [3, 1, 4, 1, 5];

test('without maxNewTokens, a prompt gets 20 new tokens and the first one a notice', async () => {
  seed(3);
  const model = new nn.models.GPT2(sizes);
  const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const own = await initInference(model, small);
  const count = async (more: object): Promise<number | undefined> =>
    (await own.generate({ prompt, ignoreEos: true, ...more }))[0]?.tokens.length;
  expect([await count({}), await count({}), await count({ minTokens: 30 })]).toEqual([20, 20, 30]);
  expect(await count({ prompt: Array(60).fill(7) })).toBe(4);
  const notices = warn.mock.calls.map(([text]) => text);
  expect(notices).toEqual([expect.stringMatching(/maxNewTokens is 20 .*Set it to omit/)]);
  warn.mockRestore();
  await own.destroy();
});

test('an answer to messages may fill the context', async () => {
  const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
  const textModel = new nn.models.GPT2({ ...sizes, vocabSize: tokenizer.vocabSize });
  const own = await initInference(textModel, small, { tokenizer });
  const messages = [{ role: 'user', content: 'Hi' }];
  const [one] = await own.generate({ messages, ignoreEos: true, temperature: 0 });
  expect((one?.tokens.length ?? 0) + (one?.promptTokens ?? 0)).toBe(own.maxTokens);
  const { generatedTokens, promptTokens } = await own.chat({ messages, ignoreEos: true });
  expect(generatedTokens + promptTokens).toBe(own.maxTokens);
  await own.destroy();
});
