// Tests checkpoint(), its policies and checkpointSequential(): inputs, layouts, lifetimes, options,
// times.
import assert from 'node:assert/strict';
import * as checkpointing from '../../lib/checkpointing.js';
import { DsError } from '../../lib/errors.js';
import { nn } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import {
  checkpoint,
  checkpointSequential,
  dropout,
  gelu,
  linear,
  liveTensors,
  randn,
  recomputed,
  scope,
  seed,
  Tensor,
} from '../../lib/tensor/index.js';
import { configureFromSection } from '../../lib/tensor/recompute/section.js';
import type { Case } from '../support/case.js';
import {
  bothStores,
  equalsPlain,
  type Gradients,
  gradients,
  leaf,
  type Options,
  under,
} from './segments.js';

/**
 * Within two roundings: an output that is also an input adds its gradient in another order, which a
 * fused sum rounds once.
 */
function isClose(got: Gradients, expected: Gradients): void {
  for (const [leaf, values] of expected.entries()) {
    for (const [i, value] of (values ?? []).entries()) {
      const difference = Math.abs((got[leaf]?.[i] ?? Number.NaN) - value);
      assert.ok(difference <= 2 ** -22 * Math.max(1, Math.abs(value)), `${difference} at ${value}`);
    }
  }
}

const rejects = (options: object, code: string): void =>
  assert.throws(
    () => checkpointing.configure(options),
    (error) => error instanceof DsError && error.code === code,
  );

const inputCases: Case[] = [
  ...bothStores('inputs may be null, numbers, functions and index tensors', (device) => {
    const x = leaf([6, 4], device);
    const rows = Tensor.from(Int32Array.from([2, 0, 5]), { device }).keep();
    const segment = (y: Tensor, none: null, p: number, index: Tensor, f: (t: Tensor) => Tensor) => {
      assert.equal(none, null);
      assert.equal(index.dtype, 'i32');
      return dropout(f(y), p).mul(index.sum().to('f32'));
    };
    equalsPlain(
      [x],
      (run) => run(segment, x.exp(), null, 0.3, rows, (t: Tensor) => t.tanh()).sum(),
      device,
    );
    rows.dispose();
  }),
  ...bothStores('a list of outputs, one of them an input, one unused', (device) => {
    const [x, w] = [leaf([5, 3], device), leaf([5, 3], device)];
    const segment = (a: Tensor, b: Tensor) => [a.mul(b).tanh(), a, b.exp()];
    equalsPlain(
      [x, w],
      (run) => {
        const [first, second] = run(segment, x.square(), w.sin()) as [Tensor, Tensor];
        return first.add(second).sum();
      },
      device,
      device.kind === 'cpu' ? undefined : isClose,
    );
  }),
  ...bothStores('transposed, broadcast, cut and empty inputs keep their layout', (device) => {
    const x = leaf([6, 4], device);
    const segment = (t: Tensor, b: Tensor, cut: Tensor, empty: Tensor) => {
      assert.deepEqual([...t.strides], [1, 4]);
      assert.deepEqual([...b.strides], [0, 0, 1]);
      assert.deepEqual([...cut.strides], [4, 1]);
      assert.equal(empty.numel, 0);
      return t.sum().add(b.square().sum()).mul(cut.exp().sum()).add(empty.sum());
    };
    equalsPlain(
      [x],
      (run) => {
        const y = x.tanh();
        const wide = y.slice(0, 1, 2).reshape([1, 1, 4]).contiguous().expand([3, 2, 4]);
        return run(segment, y.transpose(), wide, y.narrow(1, 1, 2), y.narrow(0, 3, 0));
      },
      device,
    );
  }),
  ...bothStores('segments inside segments, six deep in a row', (device) => {
    const [x, w] = [leaf([8, 8], device), leaf([8, 8], device)];
    equalsPlain(
      [x, w],
      (run) => {
        let y = x;
        for (let i = 0; i < 6; ++i) {
          y = run((a: Tensor) => {
            const b = run((c: Tensor) => dropout(linear(c, w), 0.2).tanh(), a.sin());
            return run((c: Tensor) => gelu(linear(c, w)), b);
          }, y);
        }
        return y.sum();
      },
      device,
    );
  }),
  {
    name: 'tensors hidden in a collection are refused',
    run(device) {
      const x = leaf([2], device);
      assert.throws(
        () => checkpoint(([y]: Tensor[]) => (y as Tensor).exp(), [x]),
        (error) => error instanceof DsError && error.code === 'DS_ARGUMENT',
      );
      x.dispose();
    },
  },
];

/** Fills freed memory of this shape with NaN, as if a copy from it were still running. */
function poison(shape: readonly number[], device: Device): void {
  const memory = Tensor.empty(shape, 'f32', device);
  kernels.fill({ out: memory, value: Number.NaN });
  memory.dispose();
}

const lifetimeCases: Case[] = [
  ...bothStores(
    'memory that segments give up is used again at once, 12 large segments',
    (device) => {
      const shape = [device.kind === 'cpu' ? 64 : 4096, 512];
      const [x, w] = [leaf(shape, device), leaf([512, 512], device)];
      equalsPlain(
        [x, w],
        (run) => {
          let y = x.sin();
          for (let i = 0; i < 12; ++i) {
            const next = run((a: Tensor) => {
              poison(shape, device);
              return linear(a, w).tanh();
            }, y);
            y.dispose();
            poison(shape, device);
            y = next;
          }
          return y.square().sum();
        },
        device,
      );
    },
  ),
  ...bothStores('segments that no backward uses are freed, one on its way back too', (device) => {
    const x = leaf([64, 64], device);
    const chain = (): Tensor =>
      checkpoint(
        (b: Tensor) => b.exp(),
        checkpoint((a: Tensor) => a.tanh(), x.sin()),
      ).sum();
    const run = (): void => {
      scope(() => {
        chain();
        chain().backward();
      });
      x.grad?.release();
      x.grad = null;
    };
    run();
    const [tensors, memory] = [liveTensors(), device.memory];
    run();
    assert.equal(liveTensors(), tensors);
    assert.equal(device.memory.inUse, memory.inUse);
    assert.equal(device.memory.liveBuffers, memory.liveBuffers);
    x.dispose();
  }),
  ...bothStores('a segment that throws leaves nothing behind', (device) => {
    const x = leaf([16], device);
    const failReplay = (): void => {
      scope(() =>
        checkpoint((y: Tensor) => {
          y.exp();
          throw new RangeError('stop');
        }, x.sin()),
      );
    };
    assert.throws(failReplay, RangeError);
    const [tensors, memory] = [liveTensors(), device.memory.inUse];
    assert.throws(failReplay, RangeError);
    assert.equal(liveTensors(), tensors);
    assert.equal(device.memory.inUse, memory);
    x.dispose();
  }),
  {
    name: 'pinned buffers are used again from step to step and freed by reset()',
    run(device) {
      const before = device.memory.liveBuffers;
      const x = leaf([128, 128], device);
      const step = (): number => {
        scope(() =>
          checkpointSequential(
            Array.from({ length: 4 }, () => (y: Tensor) => y.sin()),
            null,
            x.exp(),
          )
            .sum()
            .backward(),
        );
        x.grad?.release();
        x.grad = null;
        return device.memory.liveBuffers;
      };
      const after = under({ cpuCheckpointing: true }, () => {
        const first = step();
        for (let i = 0; i < 5; ++i) assert.equal(step(), first);
        return first;
      });
      assert.ok(after > before + 1, 'the pool holds buffers');
      assert.equal(device.memory.liveBuffers, before + 1);
      x.dispose();
    },
  },
  {
    name: 'a segment recorded before reset() is replayed as it was recorded',
    run(device) {
      const x = leaf([32, 4], device);
      const expected = gradients([x], () => x.exp().sin().sum());
      checkpointing.configure({ cpuCheckpointing: true });
      const got = gradients([x], () => {
        const first = checkpoint((y: Tensor) => y.sin(), x.exp());
        const second = checkpoint((y: Tensor) => y.add(0), first);
        checkpointing.reset();
        return second.sum();
      });
      assert.deepEqual(got, expected);
      x.dispose();
    },
  },
];

const optionCases: Case[] = [
  {
    name: 'configure() takes options or the section, refuses others; reset() undoes it',
    run() {
      assert.equal(checkpointing.isConfigured(), false);
      checkpointing.configure({ number_checkpoints: 3, cpu_checkpointing: false });
      assert.equal(checkpointing.isConfigured(), true);
      checkpointing.reset();
      assert.equal(checkpointing.isConfigured(), false);
      rejects({ numberCheckpoints: 0 }, 'DS_ARGUMENT');
      rejects({ numberCheckpoints: 1.5 }, 'DS_ARGUMENT');
      checkpointing.configure({ enabled: true, synchronize_checkpoint_boundary: true });
      assert.equal(checkpointing.isConfigured(), true);
      checkpointing.reset();
      rejects({ number_checkpoint: 3 }, 'DS_ARGUMENT');
      rejects([], 'DS_ARGUMENT');
      rejects({ contiguous_memory_optimization: true }, 'DS_CONFIG');
      rejects({ contiguousCheckpointing: true }, 'DS_CONFIG');
      rejects({ partition_activations: true }, 'DS_CONFIG');
      assert.equal(checkpointing.isConfigured(), false);
    },
  },
  {
    name: 'a section that asks for nothing leaves the configuration alone',
    run() {
      const nothing = { enabled: true, number_checkpoints: null, profile: false };
      configureFromSection(nothing);
      assert.equal(checkpointing.isConfigured(), false);
      configureFromSection({ ...nothing, number_checkpoints: 2 });
      assert.equal(checkpointing.isConfigured(), true);
      configureFromSection(nothing);
      assert.equal(checkpointing.isConfigured(), true);
      checkpointing.reset();
    },
  },
  {
    name: 'checkpointSequential cuts layers into segments: 7 in 3, in more than 7, by configure()',
    run(device) {
      const x = leaf([4, 4], device);
      const runs = (segments: number | null, options: Options = {}): number[] => {
        const seen: number[] = [];
        const layers = Array.from({ length: 7 }, (_, i) => (y: Tensor) => {
          seen.push(i);
          return y.sin();
        });
        under(options, () => gradients([x], () => checkpointSequential(layers, segments, x).sum()));
        return seen.slice(7);
      };
      assert.deepEqual(runs(3), [4, 5, 6, 2, 3, 0, 1]);
      assert.deepEqual(runs(9), [6, 5, 4, 3, 2, 1, 0]);
      assert.deepEqual(runs(null), [6, 5, 4, 3, 2, 1, 0]);
      assert.deepEqual(runs(null, { numberCheckpoints: 2 }), [3, 4, 5, 6, 0, 1, 2]);
      assert.throws(
        () => runs(-1),
        (error) => error instanceof DsError && error.code === 'DS_ARGUMENT',
      );
      x.dispose();
    },
  },
  ...bothStores('what checkpointSequential gives its layers lives until the replay', (device) => {
    const x = leaf([2, 3], device);
    const layers = Array.from({ length: 3 }, () => {
      return (y: Tensor, factor: Tensor, none: Tensor | null): Tensor => {
        assert.equal(none, null);
        return y.sin().mul(factor.to('f32'));
      };
    });
    const factorOf = (): Tensor => Tensor.from([1, 2, 3], { dtype: 'i32', device });
    const loss = (): Tensor =>
      scope(() => checkpointSequential(layers, 2, x, factorOf(), null).sum());
    const plain = (): Tensor =>
      layers.reduce((y, layer) => layer(y, factorOf(), null), x as Tensor).sum();
    assert.deepEqual(gradients([x], loss), gradients([x], plain));
    x.dispose();
  }),
  {
    name: 'checkpointSequential runs the modules of a Sequential',
    run(device) {
      seed(9);
      const model = new nn.Sequential(
        new nn.Linear(8, 16),
        new nn.Tanh(),
        new nn.Linear(16, 8),
        new nn.Dropout(0.25),
      ).to(device);
      const leaves = model.parameters();
      const x = randn([3, 8], { device }).keep();
      seed(11);
      const expected = gradients(leaves, () => (model.call(x) as Tensor).sum());
      seed(11);
      const got = gradients(leaves, () => checkpointSequential(model, 2, x).sum());
      assert.deepEqual(got, expected);
      for (const each of [x, ...leaves]) each.dispose();
    },
  },
  {
    name: 'profile reports every segment of every step, forward and recomputation',
    run(device) {
      const x = leaf([16, 16], device);
      const seen: number[] = [];
      const profile = ({ segment }: checkpointing.SegmentRun): void => {
        seen.push(segment);
      };
      const rows = under({ profile }, () => {
        for (let step = 0; step < 3; ++step) {
          const layers = [1, 2, 3].map((n) => (y: Tensor) => y.mul(n).sin());
          gradients([x], () => checkpointSequential(layers, null, x).sum());
        }
        device.synchronize();
        return checkpointing.times();
      });
      assert.deepEqual(
        rows.map(({ segment, runs }) => [segment, runs]),
        [
          [0, 3],
          [1, 3],
          [2, 3],
        ],
      );
      assert.deepEqual(seen, [2, 1, 0, 2, 1, 0, 2, 1, 0]);
      for (const { forwardMs, recomputeMs } of rows) {
        assert.ok(Number.isFinite(forwardMs) && Number.isFinite(recomputeMs));
      }
      x.dispose();
    },
  },
];

/** Bytes that the graph of `out` holds, without `out`. */
function heldBytes(device: Device, make: () => Tensor): number {
  const before = device.memory.inUse;
  const out = scope(make);
  const bytes = device.memory.inUse - before - out.bytes;
  out.dispose();
  return bytes;
}

const selectiveCases: Case[] = [
  {
    name: 'recomputed: the product after it keeps its input, not its value, and the same gradients',
    run(device) {
      const [x, w] = [leaf([64, 128], device), leaf([32, 128], device)];
      const smooth = (y: Tensor): Tensor => gelu(y);
      const plain = (): Tensor => linear(gelu(x.sin()), w);
      const again = (): Tensor => linear(recomputed(smooth, x.sin()), w);
      const twice = (): Tensor => linear(recomputed(smooth, recomputed(smooth, x.sin())), w);
      const nestedResult = (): Tensor => linear(gelu(gelu(x.sin())), w);
      assert.deepEqual(
        gradients([x, w], () => again().sum()),
        gradients([x, w], () => plain().sum()),
      );
      assert.deepEqual(
        gradients([x, w], () => twice().sum()),
        gradients([x, w], () => nestedResult().sum()),
      );
      assert.equal(heldBytes(device, plain) - heldBytes(device, again), x.bytes);
      for (const each of [x, w]) each.dispose();
    },
  },
];

export const cases: Case[] = [...inputCases, ...lifetimeCases, ...optionCases, ...selectiveCases];
