// Runs with the stream order checker: updates read operands that another stream has completed, or
// still reads.
import { cpu } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { Event, Stream } from '../../lib/runtime/stream.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import type { Partition } from '../../lib/zero/partition.js';
import { tinyEngine, trainTiny } from '../e2e/tiny-training.js';

/** An update on the device of a gradient that another stream has completed. */
async function residentUpdate(): Promise<void> {
  const engine = await tinyEngine({ precision: 'bf16', offload: false }, cpu());
  trainTiny(engine, 0, 1);
  const { state } = engine.parts.state.updateGroups[0] ?? {};
  const [partition] = engine.parts.stage.partitions as readonly Partition[];
  if (!partition || !state) throw new Error('an engine without a partition');
  const grad = held(() => Tensor.empty([partition.numel], 'bf16', engine.device));
  partition.grad = grad;
  const exchange = Stream.create(engine.device, 'exchange');
  exchange.wait(new Event(engine.device).record(engine.device.compute));
  kernels.fill({ out: grad, value: 1 }, exchange);
  partition.ready.record(exchange);
  const control = held(() => Tensor.empty([4], 'f32', engine.device));
  state.update(partition, control, ({ grad: given }) => {
    const read = held(() => Tensor.emptyLike(given));
    kernels.copy({ in: given, out: read });
    read.dispose();
  });
  control.dispose();
  engine.device.synchronize();
  partition.dropGrad();
  engine.destroy();
}

/** Backward reads weights to its end after requireGrad(false) on them. */
async function frozenInBetween(): Promise<void> {
  const options = { precision: 'bf16', offload: true, speculative: true, clip: 1e9 } as const;
  const engine = await tinyEngine(options, cpu());
  trainTiny(engine, 0, 2);
  // The first layers of a unit: the gradients of the others are complete before.
  const isFirst = (name: string): boolean => /\.h\.\d\.(ln_1|attn\.c_attn)\./.test(name);
  const frozen = [...engine.module.namedParameters()].filter(([name]) => isFirst(name));
  if (frozen.length !== 8) throw new Error(`${frozen.length} parameters have such names`);
  for (const [, parameter] of frozen) parameter.requireGrad(false);
  trainTiny(engine, 2, 4);
  engine.destroy();
}

async function main(): Promise<void> {
  const label = process.argv[2];
  await (label === 'resident' ? residentUpdate() : frozenInBetween());
  console.log('no race');
}

void main();
