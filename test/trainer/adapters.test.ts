// Tests that a Trainer of a model with adapters saves files for PEFT and loadAdapter(), without
// base weights.
import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, noGrad, peft, scope, Tensor } from '../../lib/index.js';
import { seed } from '../../lib/tensor/index.js';
import { destroyTrainers, tinyTrainer, VOCABULARY } from './tiny.js';

let dir: string;
let warnings: string[];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-trainer-adapters-'));
  warnings = [];
  jest.spyOn(process, 'emitWarning').mockImplementation((text) => {
    warnings.push(String(text));
  });
});
afterEach(async () => {
  jest.restoreAllMocks();
  await destroyTrainers();
  rmSync(dir, { recursive: true, force: true });
});

/** GPT-2's files are transposed, Llama's are not. */
const FAMILIES = {
  gpt2: () => new nn.models.GPT2({ ...SIZES, channels: 16 }),
  llama: () => new nn.models.Llama({ ...SIZES, channels: 16, hidden: 24 }),
};
const SIZES = { vocabSize: VOCABULARY, maxSeq: 16, layers: 1, heads: 2 };

type Kind = keyof typeof FAMILIES;

/** The folder of a base model. */
async function base(kind: Kind): Promise<string> {
  seed(5);
  const folder = join(dir, 'base');
  await nn.saveWeights(FAMILIES[kind](), folder);
  return folder;
}

const filesOf = (folder: string): string[] => readdirSync(folder).sort();

const digest = (folder: string): string[] =>
  filesOf(folder).map((name) => {
    const bytes = readFileSync(join(folder, name));
    return `${name} ${createHash('sha256').update(bytes).digest('hex')}`;
  });

function logits(model: nn.Module): number[] {
  const tokens = Tensor.from(Int32Array.from([3, 1, 4, 1, 5, 9]), { shape: [1, 6] });
  return noGrad(() => scope(() => (model.eval() as nn.models.CausalLM).call(tokens).toArray()));
}

const configOf = (folder: string) =>
  JSON.parse(readFileSync(join(folder, 'adapter_config.json'), 'utf8'));

const ADAPTER = ['adapter_config.json', 'adapter_model.safetensors'];

test.each<[Kind, peft.LoraOptions]>([
  ['gpt2', {}],
  ['llama', { r: 4, targetModules: 'all-linear' }],
  ['llama', { useDora: true, modulesToSave: ['norm'] }],
  ['gpt2', { bias: 'lora_only' }],
])('save() of a %s with %j leaves an adapter that loads again', async (kind, options) => {
  const folder = await base(kind);
  const before = digest(folder);
  const model = peft.addLora(await nn.models.fromPretrained(folder), options);
  const trainer = tinyTrainer({ model, maxSteps: 3, lr: 3e-2 });
  await trainer.train();
  const out = join(dir, 'adapter');
  await trainer.save(out);
  expect(filesOf(out)).toEqual(ADAPTER);
  expect(configOf(out)).toMatchObject({ peft_type: 'LORA', base_model_name_or_path: folder });
  expect(digest(folder)).toEqual(before);
  const trained = logits((await trainer.engine()).module);
  const plain = await nn.models.fromPretrained(folder);
  expect(logits(plain)).not.toEqual(trained);
  expect(logits(await peft.loadAdapter(plain, out))).toEqual(trained);
  expect(warnings).toEqual([]);
});

test.each([false, true])('checkpoints hold the adapter (weightsOnly: %s)', async (weightsOnly) => {
  const folder = await base('gpt2');
  const makeAdapted = async () => peft.addLora(await nn.models.fromPretrained(folder));
  const save = { dir: join(dir, 'run'), every: 2, weightsOnly };
  const trainer = tinyTrainer({ model: await makeAdapted(), maxSteps: 4, lr: 3e-2, save });
  await trainer.train();
  const checkpoint = join(save.dir, 'checkpoint-4');
  expect(filesOf(checkpoint)).toEqual([
    ...ADAPTER,
    ...(weightsOnly ? [] : [expect.stringMatching(/^global_step/), 'latest']),
    'trainer_state.json',
  ]);
  const trained = logits((await trainer.engine()).module);
  const plain = await nn.models.fromPretrained(folder);
  expect(logits(await peft.loadAdapter(plain, checkpoint))).toEqual(trained);
  if (weightsOnly) return;
  const second = tinyTrainer({ model: await makeAdapted(), maxSteps: 4, save });
  await second.train({ resume: true });
  expect(logits((await second.engine()).module)).toEqual(trained);
});

test('merged adapters are saved as the weights that have them', async () => {
  const folder = await base('llama');
  const model = peft.addLora(await nn.models.fromPretrained(folder), { initLoraWeights: false });
  peft.merge(model);
  const trainer = tinyTrainer({ model, train: undefined });
  const out = join(dir, 'merged');
  await trainer.save(out);
  expect(filesOf(out)).toEqual(['config.json', 'model.safetensors']);
  expect(logits(await nn.models.fromPretrained(out))).toEqual(logits(model));
});

test('a folder with a whole model takes no adapter: it would load without it', async () => {
  const folder = await base('gpt2');
  const before = digest(folder);
  const model = peft.addLora(await nn.models.fromPretrained(folder));
  const trainer = tinyTrainer({ model });
  await expect(trainer.save(folder)).rejects.toMatchObject({
    code: 'DS_CHECKPOINT',
    op: folder,
    expected: expect.stringContaining('a folder without the weights of a model'),
    got: expect.stringContaining('model.safetensors'),
  });
  expect(digest(folder)).toEqual(before);
});

test('a base that came from no folder is named as missing, once', async () => {
  const trainer = tinyTrainer({ model: peft.addLora(FAMILIES.gpt2()) });
  await trainer.save(join(dir, 'a'));
  await trainer.save(join(dir, 'b'));
  expect(filesOf(join(dir, 'b'))).toEqual(ADAPTER);
  expect(warnings).toEqual([expect.stringMatching(/holds only the adapters.*baseModelNameOrPath/)]);
});

test('the error names trained parameters outside the adapter', async () => {
  const folder = await base('llama');
  const model = peft.addLora(await nn.models.fromPretrained(folder));
  (model as nn.models.Llama).lm_head.requiresGrad_(true);
  const trainer = tinyTrainer({ model });
  await trainer.save(join(dir, 'a'));
  expect(warnings).toEqual([
    expect.stringMatching(/do not contain lm_head\.weight, which is also trained.*modulesToSave/),
  ]);
});

test('an earlier save of the same adapter is replaced', async () => {
  const folder = await base('llama');
  const model = peft.addLora(await nn.models.fromPretrained(folder));
  const trainer = tinyTrainer({ model, maxSteps: 2, lr: 3e-2 });
  const out = join(dir, 'a');
  await trainer.save(out);
  const before = digest(out);
  writeFileSync(join(out, 'config.json'), '{"model_type": "llama"}');
  await trainer.train();
  await trainer.save(out);
  expect(digest(out)[1]).not.toEqual(before[1]);
  const plain = await nn.models.fromPretrained(folder);
  const again = await peft.loadAdapter(plain, out);
  expect(logits(again)).toEqual(logits((await trainer.engine()).module));
});
