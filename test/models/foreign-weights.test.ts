// Tests weights of another model: no hint drops trained values, and errors name an architecture
// without a language head.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initialize, nn, peft, type Tensor } from '../../lib/index.js';
import { isFactor } from '../../lib/nn/name-mismatch.js';
import { seed } from '../../lib/tensor/index.js';
import { stir, tinyGpt2, tinyLlama } from '../peft/models.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-foreign-weights-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

class Small extends nn.Module {
  readonly first = new nn.Linear(2, 2);
  constructor(readonly second: nn.Linear | null) {
    super();
  }
  forward(x: Tensor): Tensor {
    return this.first.call(x);
  }
}
const small = (): Small => new Small(null);
const large = (): Small => new Small(new nn.Linear(2, 2));
const withLora = (model: nn.Module): nn.Module =>
  peft.addLora(model, { targetModules: ['first'], r: 1 });

/** Each way to load the values of `from` into `to`. */
const LOADS: Record<string, (from: nn.Module, to: nn.Module) => Promise<unknown>> = {
  loadWeights: async (from, to) => {
    const path = join(dir, 'weights.safetensors');
    await nn.saveWeights(from, path);
    return nn.loadWeights(to, path);
  },
  loadStateDict: async (from, to) => to.loadStateDict(from.stateDict()),
  loadCheckpoint: async (from, to) => {
    const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'AdamW' } } as const;
    const { engine: saving } = await initialize({ model: from, config, device: 'cpu' });
    await saving.saveCheckpoint(dir);
    saving.destroy();
    const { engine: loading } = await initialize({ model: to, config, device: 'cpu' });
    try {
      return await loading.loadCheckpoint(dir);
    } finally {
      loading.destroy();
    }
  },
};

const WITHOUT_STRICT = /trict: false/;

describe.each(Object.keys(LOADS))('%s', (way) => {
  const hintFor = async (from: nn.Module, to: nn.Module): Promise<string> => {
    const load = LOADS[way] as (typeof LOADS)[string];
    const error = await load(from, to).then(
      () => null,
      (thrown) => thrown,
    );
    expect(error).toMatchObject({ code: 'DS_CHECKPOINT' });
    return error.hint;
  };

  test('the hint for missing values names the option strict', async () => {
    expect(await hintFor(small(), large())).toMatch(WITHOUT_STRICT);
  });

  test('the hint for unread values mentions another model', async () => {
    const hint = await hintFor(large(), small());
    expect(hint).not.toMatch(WITHOUT_STRICT);
    expect(hint).toMatch(/saved from another model/i);
  });

  test('the hint for adapter values names peft.addLora()', async () => {
    const hint = await hintFor(withLora(small()), small());
    expect(hint).not.toMatch(WITHOUT_STRICT);
    expect(hint).toMatch(/peft\.addLora\(\)/);
  });

  test('missing adapters with other names have the same hint', async () => {
    const hint = await hintFor(withLora(small()), large());
    expect(hint).not.toMatch(WITHOUT_STRICT);
    expect(hint).toMatch(/peft\.addLora\(\)/);
  });

  test('a model with adapters takes the base before them', async () => {
    expect(await hintFor(small(), withLora(small()))).toMatch(/before peft\.addLora\(\)/);
  });
});

test('the error of adapters in a model file names the call that reads them', async () => {
  const base = join(dir, 'base');
  await nn.saveWeights(tinyGpt2(), base);
  const model = peft.addLora(tinyGpt2());
  stir(model);
  const broken = join(dir, 'broken');
  await nn.saveWeights(tinyGpt2(), broken);
  await nn.saveWeights(model, join(broken, 'model.safetensors'));
  await expect(nn.models.fromPretrained(broken)).rejects.toMatchObject({
    code: 'DS_CHECKPOINT',
    hint: expect.stringMatching(
      /fromConfig\(folder\).*peft\.addLora\(\).*loadWeights\(model, folder, \{ format: "native" \}\)/,
    ),
  });
  const other = peft.addLora(nn.models.fromConfig(broken));
  await nn.loadWeights(other, broken, { format: 'native' });
  const values = (model: nn.Module) =>
    Object.entries(model.stateDict()).map(([name, tensor]) => [name, tensor.toArray()]);
  expect(values(other)).toEqual(values(model));
});

test('names of factors follow layers and tables', () => {
  const names = [...withLora(small()).namedParameters()].map(([name]) => name);
  expect(names.filter(isFactor)).toEqual(['first.lora_A.weight', 'first.lora_B.weight']);
});

const configIn = (folder: string): string => join(folder, 'config.json');

/** A folder of a tiny Llama or GPT-2 with `architectures` in its config. */
async function folderOf(model: nn.Module, architectures: unknown): Promise<string> {
  const folder = join(dir, 'model');
  await nn.saveWeights(model, folder);
  const config = JSON.parse(readFileSync(configIn(folder), 'utf8'));
  writeFileSync(configIn(folder), JSON.stringify({ ...config, architectures }));
  return folder;
}

describe('architectures', () => {
  test.each([
    ['LlamaForSequenceClassification'],
    ['LlamaForTokenClassification'],
    ['LlamaForQuestionAnswering'],
    ['Qwen2ForRewardModel'],
    ['GPT2DoubleHeadsModel'],
    ['T5ForConditionalGeneration'],
    ['BertForMaskedLM'],
    ['LlamaForSequenceClassification', 'LlamaForTokenClassification'],
  ])('%s is no language model', async (...names) => {
    const folder = await folderOf(tinyLlama(), names);
    const refusal = {
      code: 'DS_CHECKPOINT',
      op: `${configIn(folder)}: architectures`,
      expected: expect.stringContaining('ForCausalLM'),
      got: JSON.stringify(names),
      hint: expect.not.stringMatching(WITHOUT_STRICT),
    };
    await expect(nn.models.fromPretrained(folder)).rejects.toMatchObject(refusal);
    expect(() => nn.models.fromConfig(folder)).toThrow(expect.objectContaining(refusal));
    const config = JSON.parse(readFileSync(configIn(folder), 'utf8'));
    expect(() => nn.models.fromConfig(config)).toThrow(
      expect.objectContaining({ op: 'config: architectures' }),
    );
  });

  test.each<[string, () => nn.Module, unknown]>([
    ['a causal one', tinyLlama, ['LlamaForCausalLM']],
    ['one of another library', tinyLlama, ['LLaMAForCausalLM']],
    ['the body alone, of which GPT-2 needs no more', tinyGpt2, ['GPT2Model']],
    ['one of two', tinyLlama, ['LlamaModel', 'LlamaForCausalLM']],
    ['a name of its own', tinyLlama, ['MyLlama']],
    ['none', tinyLlama, []],
    ['null', tinyLlama, null],
  ])('%s loads', async (_, model, architectures) => {
    const folder = await folderOf(model(), architectures);
    await nn.models.fromPretrained(folder);
    seed(1);
    nn.models.fromConfig(folder);
  });

  test.each([['LlamaForSequenceClassification'], [7], [[7]], [{}]])(
    'anything but a list of names is refused: %j',
    async (architectures) => {
      const folder = await folderOf(tinyLlama(), architectures);
      await expect(nn.models.fromPretrained(folder)).rejects.toMatchObject({
        code: 'DS_CHECKPOINT',
        expected: 'a list of names',
      });
    },
  );
});

test('a folder with a task head is refused before its tensors are compared', async () => {
  const folder = await folderOf(tinyLlama(), ['LlamaForSequenceClassification']);
  const path = join(folder, 'model.safetensors');
  const score = new Small(null);
  await nn.saveWeights(score, path);
  await expect(nn.models.fromPretrained(folder)).rejects.toThrow(/architectures/);
});
