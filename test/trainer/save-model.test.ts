// Tests trainer.save(): a folder with weights and tokenizer, for models and after a killed save.
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, type Trainer, type TrainerOptions } from '../../lib/index.js';
import { destroyTrainers, tinyModel, tinyTrainer, type Window, weightsOf } from './tiny.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-save-model-'));
});
afterEach(async () => {
  await destroyTrainers();
  rmSync(dir, { recursive: true, force: true });
});

const trainer = (options: Partial<TrainerOptions<Window>>): Trainer<Window> =>
  tinyTrainer({ model: tinyModel(0.1), epochs: 2, ...options });

/** Two words. */
const TOKENIZER = {
  version: '1.0',
  truncation: null,
  padding: null,
  added_tokens: [],
  normalizer: null,
  pre_tokenizer: { type: 'Whitespace' },
  post_processor: null,
  decoder: null,
  model: { type: 'BPE', vocab: { a: 0, b: 1 }, merges: [] },
};

const SIZES = {
  vocabSize: 61,
  maxSeq: 16,
  layers: 1,
  heads: 2,
  kvHeads: 1,
  channels: 16,
  hidden: 24,
};
/**
 * Files of GPT-2 and Mixtral have another layout than their parameters; files of Llama have the
 * same.
 */
const models: readonly [string, () => nn.Module][] = [
  ['GPT-2', () => tinyModel()],
  ['Llama', () => new nn.models.Llama(SIZES)],
  ['Mixtral', () => new nn.models.Mixtral({ ...SIZES, moe: { experts: 3, perToken: 2 } })],
];

test.each(models)(
  'save() writes a folder of %s with its tokenizer, over an older one',
  async (_, model) => {
    const tokenizer = join(dir, 'tokenizer');
    mkdirSync(tokenizer);
    writeFileSync(join(tokenizer, 'tokenizer.json'), JSON.stringify(TOKENIZER));
    writeFileSync(join(tokenizer, 'chat_template.jinja'), '{{ messages }}');
    const one = trainer({ model: model(), tokenizer, maxSteps: 1 });
    const out = join(dir, 'out');
    await one.save(out);
    await one.train();
    await one.save(out);
    expect(readdirSync(out).sort()).toEqual([
      'chat_template.jinja',
      'config.json',
      'model.safetensors',
      'tokenizer.json',
    ]);
    const saved = await nn.models.fromPretrained(out);
    expect(weightsOf(saved)).toEqual(weightsOf((await one.engine()).module));
  },
);

test('save() writes no optimizer on the way', async () => {
  const one = trainer({ maxSteps: 1 });
  await one.train();
  const engine = await one.engine();
  const checkpoint = jest.spyOn(engine, 'saveCheckpoint');
  await one.save(dir);
  expect(checkpoint).not.toHaveBeenCalled();
  expect(readdirSync(dir).sort()).toEqual(['config.json', 'model.safetensors']);
  const saved = await nn.models.fromPretrained(dir);
  expect(weightsOf(saved)).toEqual(weightsOf(engine.module));
});

test('leftovers of a killed save() are deleted by the next one', async () => {
  const one = trainer({ maxSteps: 1 });
  const engine = await one.engine();
  const [out, killed] = [join(dir, 'out'), join(dir, 'killed')];
  const save = engine.save16bitModel.bind(engine);
  engine.save16bitModel = async (folder, file) => {
    const path = await save(folder, file);
    cpSync(out, killed, { recursive: true }); // Without the locks, as after a kill.
    return path;
  };
  await one.save(out);
  expect(readdirSync(killed)).toHaveLength(2);
  await one.save(killed);
  expect(readdirSync(killed).sort()).toEqual(['config.json', 'model.safetensors']);
});
