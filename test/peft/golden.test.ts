// Adapters against PEFT, as scripts/record-peft.py has recorded it.
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { nn, peft, scope, Tensor } from '../../lib/index.js';
import { largest } from './models.js';

const root = join(__dirname, '../golden/peft');

async function goldenOf(name: string): Promise<Map<string, Tensor>> {
  const files = await WeightFiles.open(join(root, name, 'golden.safetensors'));
  const found = new Map<string, Tensor>();
  for (const key of files.tensors.keys()) found.set(key, await files.read(key));
  await files.close();
  return found;
}

const valuesOf = (golden: Map<string, Tensor>, key: string): number[] =>
  (golden.get(key) as Tensor).to('f32').toArray();

const bases = {
  llama: 'llama',
  'llama-rslora': 'llama-rslora',
  gpt2: 'gpt2',
  'llama-dora': 'llama',
  'gpt2-dora': 'gpt2',
  'qwen3-moe': 'qwen3-moe',
  'gpt-oss': 'gpt-oss',
};
for (const [name, base] of Object.entries(bases)) {
  test(`${name}: logits, loss and gradients of PEFT`, async () => {
    const golden = await goldenOf(name);
    const model = await nn.models.fromPretrained(join(root, base, 'base'));
    await peft.loadAdapter(model, join(root, name, 'adapter'), { isTrainable: true });
    const tokens = (golden.get('tokens') as Tensor).keep();
    const logits = (): number[] => model.call(tokens).contiguous().toArray();
    expect(largest(logits(), valuesOf(golden, 'logits'))).toBeLessThan(1e-5);
    const [rows, length] = tokens.shape as [number, number];
    const shifted = scope(() => {
      const next = tokens
        .toArray()
        .map((_, i, all) => ((i + 1) % length ? (all[i + 1] as number) : -100));
      return Tensor.from(Int32Array.from(next), { shape: [rows, length] });
    });
    const loss = model.call(tokens, shifted);
    expect(Math.abs(loss.item() - (valuesOf(golden, 'loss')[0] as number))).toBeLessThan(1e-5);
    loss.backward();
    const parameters = new Map(model.namedParameters());
    const gradients = [...golden.keys()].filter((key) => key.startsWith('grad.'));
    for (const key of gradients) {
      const localText = key
        .replace('grad.base_model.model.', '')
        .replace('.modules_to_save.default', '')
        .replace(/\.base_layer(?!\.lora_)/, '')
        .replace('.lora_magnitude_vector.default.weight', '.lora_magnitude_vector')
        .replace(/\.default(?=\.|$)/, '');
      const grad = parameters.get(localText)?.grad as Tensor;
      expect([localText, largest(grad.toArray(), valuesOf(golden, key)) < 1e-4]).toEqual([
        localText,
        true,
      ]);
    }
    expect(gradients.length).toBe(
      model.parameters().filter(({ requiresGrad }) => requiresGrad).length,
    );
    peft.merge(model);
    expect(largest(logits(), valuesOf(golden, 'merged'))).toBeLessThan(1e-5);
  });
}
