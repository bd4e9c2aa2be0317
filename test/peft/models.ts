// Tiny models that tests of adapters share.
import { nn, noGrad, scope, seed, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';

/** Grouped heads, two layers; the same weights for the same seed. */
export function tinyLlama(from = 1): nn.models.Llama {
  seed(from);
  const model = new nn.models.Llama({
    vocabSize: 64,
    maxSeq: 16,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    channels: 32,
    hidden: 48,
  });
  return drawWeights(model);
}

export function tinyGpt2(from = 1): nn.models.GPT2 {
  seed(from);
  return drawWeights(
    new nn.models.GPT2({ vocabSize: 64, maxSeq: 16, layers: 2, heads: 2, channels: 24 }),
  );
}

/** Draws the values now, in the order of the parameters. */
function drawWeights<Model extends nn.Module>(model: Model): Model {
  for (const parameter of model.parameters()) void parameter.buffer;
  return model;
}

/** Puts a model's parameters on `device` and returns it. */
export function on<Model extends nn.Module>(device: Device, model: Model): Model {
  return model.to(device);
}

const ids = (): Int32Array => Int32Array.from({ length: 12 }, (_, i) => (i * 7 + 3) % 64);

export function logits(model: nn.models.CausalLM, device: Device): number[] {
  return noGrad(() =>
    scope(() => {
      const tokens = Tensor.from(ids(), { shape: [2, 6], device });
      return model.eval().call(tokens).to('f32').contiguous().toArray();
    }),
  );
}

export const bitsOf = (tensor: Tensor): string =>
  Buffer.from(tensor.toRaw().buffer).toString('base64');

/** Moves every factor of the adapters away from where it starts: B is no longer zero. */
export function stir(model: nn.Module): void {
  let number = 0;
  for (const [name, parameter] of model.namedParameters()) {
    if (!/lora_/.test(name)) continue;
    const from = ++number;
    parameter.initialize((out) =>
      scope(() => {
        const values = Float32Array.from(
          { length: out.numel },
          (_, i) => 0.1 * Math.sin(1.3 * i + from),
        );
        const flat = Tensor.from(values, { shape: out.shape, device: out.device });
        nn.init.zeros(out);
        out.add_(flat);
      }),
    );
  }
}

export function largest(a: readonly number[], b: readonly number[]): number {
  return a.reduce((largest, x, i) => Math.max(largest, Math.abs(x - (b[i] as number))), 0);
}
