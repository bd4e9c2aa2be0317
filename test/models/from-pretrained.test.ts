// fromPretrained: the folder says which model it holds; what is unknown is answered with what there
// is.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { nn } from '../../lib/index.js';

const { fromPretrained, GPT2 } = nn.models;

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-pretrained-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** What transformers would have written of `model`. */
async function write(model: nn.Module, more: object = {}): Promise<void> {
  const { config, transposed } = model.describe() as nn.PretrainedDescription;
  const sources = Array.from(model.namedParameters(), ([name, parameter]) => {
    const values = transposed.includes(name) ? parameter.transpose(0, 1).contiguous() : parameter;
    return { name, dtype: values.dtype, shape: values.shape, values };
  });
  await writeSafetensors(join(dir, 'model.safetensors'), sources);
  writeFileSync(join(dir, 'config.json'), JSON.stringify({ ...config, ...more }));
}

const tiny = () => new GPT2({ vocabSize: 31, maxSeq: 8, layers: 2, heads: 2, channels: 8 });

const refusal = (message: RegExp, code = 'DS_CHECKPOINT') =>
  expect.objectContaining({ code, message: expect.stringMatching(message) });

test('model_type chooses the class; options are those of the class', async () => {
  const model = tiny();
  await write(model);
  const read = await fromPretrained(dir, { dropout: 0.5 });
  expect(read).toBeInstanceOf(GPT2);
  expect(read.config).toMatchObject({ layers: 2, channels: 8, dropout: 0.5 });
  for (const [name, parameter] of model.namedParameters()) {
    expect(read.stateDict()[name]?.toArray()).toEqual(parameter.toArray());
  }
  await expect(fromPretrained(dir, { drop: 0.5 } as object)).rejects.toEqual(
    refusal(/"drop".*"dropout"/, 'DS_ARGUMENT'),
  );
});

test.each([
  ['another type', 'bert', /config\.json: model_type: expected "gpt2".*got "bert"/],
  ['no type', null, /model_type: expected "gpt2".*got nothing/],
  ['no text', 7, /model_type: .*got 7/],
])('%s is answered with the types that there are', async (_name, type, message) => {
  await write(tiny(), { model_type: type });
  await expect(fromPretrained(dir)).rejects.toEqual(refusal(message));
  await expect(fromPretrained(dir)).rejects.toEqual(refusal(/nn\.loadWeights\(\)/));
  await expect(GPT2.fromPretrained(dir)).rejects.toEqual(
    refusal(/expected "gpt2".*nn\.models\.fromPretrained/),
  );
});

test('a folder without config.json, a file and nothing at all', async () => {
  await write(tiny());
  rmSync(join(dir, 'config.json'));
  await expect(fromPretrained(dir)).rejects.toEqual(refusal(/none called config\.json/));
  const file = join(dir, 'model.safetensors');
  await expect(fromPretrained(file)).rejects.toEqual(refusal(/got a file.*hf download/));
  await expect(fromPretrained(join(dir, 'x'))).rejects.toEqual(refusal(/got nothing of this name/));
});
