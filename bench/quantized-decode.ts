// Decoding with weights of 16, 8 and 4 bits on a GPU: tokens of a whole model of Llama's shapes and
// random weights.
import { nn, noGrad, scope, seed, zeros } from '../lib/index.js';
import { type Device, device as findDevice } from '../lib/runtime/device.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';
import { median } from './report.js';

/** Greedy tokens per second after a prompt, all rows alike; the host launches every op. */
function decode(device: Device, options: Options): object {
  const [batch, prompt, count] = ['batch', 'prompt', 'new'].map((name, i) =>
    Number(options[name] ?? [1, 128, 128][i]),
  ) as [number, number, number];
  seed(1);
  const model = benchModel(options, prompt + count)
    .to(device, 'bf16')
    .eval();
  const bits = Number(options.bits ?? 16);
  const head = options.head === undefined ? null : (Number(options.head) as 8 | 4);
  if (bits !== 16) {
    const groupSize = options.group === undefined ? undefined : Number(options.group);
    nn.quantizeModel(model, { bits: bits as 8 | 4, head, ...(groupSize && { groupSize }) });
  }
  const once = (): number =>
    noGrad(() =>
      scope(() => {
        const caches = model.caches(batch, prompt + count);
        let tokens = zeros([batch, prompt], { dtype: 'i32', device });
        let begin = 0;
        for (let i = 0; i < count; ++i) {
          tokens = scope(() => model.next(tokens, caches).argmax(-1).to('i32').reshape([batch, 1]));
          if (i > 0) continue;
          device.synchronize();
          begin = performance.now();
        }
        device.synchronize();
        return (batch * (count - 1)) / ((performance.now() - begin) / 1000);
      }),
    );
  once();
  return {
    batch,
    prompt,
    new: count,
    tokens_per_s: median([once(), once(), once(), once(), once()]),
  };
}

/**
 * --model llama-8B --bits 16|8|4 --group 128 --head 8 --batch 1 --prompt 128 --new 128. --device
 * cuda. Each product alone: bench kernels --only skinny,quantized.
 */
export function quantizedDecodeBench(options: Options): object {
  const device = findDevice(options.device ?? 'cuda');
  return decode(device, { model: 'llama-8B', ...options });
}
