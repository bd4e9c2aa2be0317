// Adapters and 4-bit weights against PEFT and bitsandbytes, as scripts/record-peft.py has recorded
// them.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { cpu, nn, peft, scope, Tensor } from '../../lib/index.js';
import { DYNAMIC_CODE, NF4_CODE } from '../../lib/peft/codebooks.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { bitsOf, largest } from './models.js';

const root = join(__dirname, '../golden/peft');
/** What is not recorded yet is skipped by name. */
const recorded = (name: string) => (existsSync(join(root, name)) ? test : test.skip);

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
  ...{ llama: 'llama', 'llama-rslora': 'llama-rslora', gpt2: 'gpt2' },
  ...{ 'llama-dora': 'llama', 'gpt2-dora': 'gpt2' },
};
for (const [name, base] of Object.entries(bases)) {
  recorded(name)(`${name}: logits, loss and gradients of PEFT`, async () => {
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
      const own = key
        .replace('grad.base_model.model.', '')
        .replace('.modules_to_save.default', '')
        .replace('.base_layer', '')
        .replace('.lora_magnitude_vector.default.weight', '.lora_magnitude_vector')
        .replace(/\.default(?=\.|$)/, '');
      const grad = parameters.get(own)?.grad as Tensor;
      expect([own, largest(grad.toArray(), valuesOf(golden, key)) < 1e-4]).toEqual([own, true]);
    }
    expect(gradients.length).toBe(
      model.parameters().filter(({ requiresGrad }) => requiresGrad).length,
    );
    peft.merge(model);
    expect(largest(logits(), valuesOf(golden, 'merged'))).toBeLessThan(1e-5);
  });
}

recorded('nf4')('the bits of bitsandbytes', async () => {
  const golden = await goldenOf('nf4');
  const device = cpu();
  const at = (key: string): Tensor => golden.get(key) as Tensor;
  for (const key of [...golden.keys()].filter((one) => one.endsWith('.values'))) {
    const base = key.slice(0, -'.values'.length);
    const nested = base.endsWith('nested');
    const [values, absmax] = [at(key), at(`${base}.absmax`)];
    const code = Tensor.from(Float32Array.from(NF4_CODE), { device });
    const packed = Tensor.empty([Math.ceil(values.numel / 2)], 'u8', device);
    const scales = Tensor.empty([Math.ceil(values.numel / 64)], 'f32', device);
    kernels.nf4Quantize({ in: values, code, packed, absmax: scales, block: 64 });
    expect([base, bitsOf(packed)]).toEqual([base, bitsOf(at(`${base}.packed`))]);
    if (nested) expect(at(`${base}.code`).toArray()).toEqual([...DYNAMIC_CODE]);
    else expect(scales.toArray()).toEqual(absmax.toArray());
    const out = Tensor.emptyLike(values);
    kernels.nf4Dequantize({
      ...{ packed, code, absmax, out, block: 64, nestedBlock: 256 },
      nestedCode: nested ? at(`${base}.code`) : null,
      nestedAbsmax: nested ? at(`${base}.nested_absmax`) : null,
      offset: nested ? at(`${base}.offset`) : null,
    });
    expect([base, bitsOf(out)]).toEqual([base, bitsOf(at(`${base}.restored`))]);
  }
});

recorded('llama-nf4')('a folder that transformers saved in 4 bits', async () => {
  const golden = await goldenOf('llama-nf4');
  const model = await nn.models.fromPretrained(join(root, 'llama-nf4', 'base'));
  const logits = model
    .call(golden.get('tokens') as Tensor)
    .to('f32')
    .contiguous()
    .toArray();
  expect(largest(logits, valuesOf(golden, 'logits'))).toBeLessThan(0.05);
});
