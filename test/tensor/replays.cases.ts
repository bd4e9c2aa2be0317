// Tests replays of checkpointed segments: which ops they run and skip, and that no value is
// missing.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import type { Device } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import {
  attention,
  beforeBackward,
  causalSelfAttentionPacked,
  checkpoint,
  checkpointSequential,
  concat,
  dropout,
  gelu,
  linear,
  linearGelu,
  liveTensors,
  randn,
  scope,
  Tensor,
  withGrad,
} from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { countOps } from '../support/op-counts.js';
import { bothStores, equalsPlain, leaf, type Options, under } from './segments.js';

/** The MLP of GPT-2 computes the slope of GELU in a matmul of its backward. */
function geluInProduct(device: Device): void {
  const leaves = [leaf([3, 5], device), leaf([7, 5], device), leaf([4, 7], device)];
  const [x, up, down] = leaves as [Tensor, Tensor, Tensor];
  const counts = countOps(() => scope(() => linear(linearGelu(x, up), down).sum().backward()));
  assert.equal(counts.UnaryBackward, undefined);
  assert.equal(counts.Matmul, 2 + 4);
  for (const each of leaves) each.dispose();
}

/** The second half of a block: backward does not read the last product and the two additions. */
const branch = (x: Tensor, up: Tensor, down: Tensor): Tensor =>
  dropout(linear(gelu(linear(x, up)), down), 0.25)
    .add(x)
    .add(1);

export const cases: Case[] = [
  { name: "GELU's slope is part of the product before it in a backward", run: geluInProduct },
  ...(['f32', 'bf16', 'f16'] as const).flatMap((dtype) =>
    bothStores(`a replay ends with what backward reads, ${dtype}`, (device) => {
      const make = (shape: number[]): Tensor =>
        randn(shape, { device }).mul(0.1).to(dtype).keep().requireGrad();
      const leaves = [make([9, 16]), make([32, 16]), make([16, 32])];
      const [x, up, down] = leaves as [Tensor, Tensor, Tensor];
      const loss = (run: typeof checkpoint): Tensor =>
        run((y: Tensor) => branch(y, up, down), x.sin()).sum();
      const out = checkpoint((y: Tensor) => branch(y, up, down), x.sin()).sum();
      const counts = countOps(() => scope(() => out.backward()));
      // The backward has four products; the replay runs up's product again, and the function
      // between both.
      assert.equal(counts.Matmul, 4 + 1);
      assert.equal(counts.Unary, 1);
      assert.equal(counts.Dropout, 1, 'its backward');
      out.dispose();
      for (const each of leaves) {
        each.grad?.release();
        each.grad = null;
      }
      equalsPlain(leaves, loss, device);
    }),
  ),
  {
    name: 'what a replay gives up returns its memory before the backward',
    run(device) {
      const x = leaf([256, 256], device);
      const before = device.memory.inUse;
      let held = 0;
      const segment = (y: Tensor): Tensor => {
        const z = y.sin();
        beforeBackward(z, () => {
          held = device.memory.inUse - before;
        });
        return z.add(1).add(2).add(3);
      };
      scope(() => checkpoint(segment, x.cos()).sum().backward());
      // The input of the segment, its output and the gradient of it; no tensor of the replay.
      assert.ok(held < 3.5 * x.bytes, `${held / x.bytes} tensors`);
      for (const each of [x.grad as Tensor, x]) each.dispose();
    },
  },
  {
    name: 'a value that a replay leaves out is an error to read, not garbage',
    run(device) {
      const x = leaf([4], device);
      const seen: Tensor[] = [];
      const out = checkpoint((y: Tensor) => {
        const z = y.exp().mul(2);
        seen.push(z.detach().keep());
        return z;
      }, x.sin()).sum();
      out.backward();
      assert.deepEqual(
        seen.map((each) => each.shape),
        [[4], [4]],
      );
      assert.equal(seen[0]?.toArray().length, 4);
      assert.throws(
        () => (seen[1] as Tensor).add(1),
        (error) => error instanceof DsError && /never computed/.test(error.message),
      );
      assert.throws(
        () => (seen[1] as Tensor).toArray(),
        (error) => error instanceof DsError && error.code === 'DS_RELEASED',
      );
      for (const each of [...seen, out, x.grad as Tensor, x]) each.dispose();
    },
  },
  ...bothStores('code that reads, copies or differentiates finds every value', (device) => {
    const [x, w] = [leaf([6, 6], device), leaf([6, 6], device)];
    const sums: number[] = [];
    const segment = (y: Tensor): Tensor => {
      const a = linear(y.tanh(), w).mul(2);
      sums.push(a.sum().item());
      const b = a.add(Tensor.from([1, 2, 3, 4, 5, 6], { device }));
      const z = b.detach().mul(1).requireGrad();
      withGrad(true, () => z.square().sum().backward());
      const slope = (z.grad as Tensor).mul(0.01);
      z.grad?.release();
      z.grad = null;
      const copied = Tensor.emptyLike(b);
      kernels.copy({ in: b, out: copied });
      kernels.binary({ a: copied, b: slope, out: copied, op: 'add', accumulate: false });
      return b.mul(copied).add(slope);
    };
    equalsPlain([x, w], (run) => run(segment, x.sin()).sum(), device);
    assert.equal(sums.length, 5);
    assert.equal(new Set(sums).size, 1);
  }),
  {
    name: 'three hundred additions wait for one another in a replay',
    run(device) {
      const [x, w] = [leaf([3, 5], device), leaf([5], device)];
      const segment = (y: Tensor): Tensor => {
        let z = y;
        for (let i = 0; i < 150; ++i) z = z.add(w);
        z = z.mul(y);
        for (let i = 0; i < 150; ++i) z = z.add(w);
        return z;
      };
      equalsPlain([x, w], (run) => run(segment, x.sin()).sum(), device);
    },
  },
  {
    name: 'an op that fails in a replay, and a function that throws there, leave nothing behind',
    run(device) {
      const x = leaf([16], device);
      const attempt = (when: number): void => {
        let runs = 0;
        scope(() => {
          const out = checkpoint((y: Tensor) => {
            const z = y.exp().add(1).add(2);
            if (runs++ === when) throw new RangeError('stop');
            return z;
          }, x.sin());
          out.sum().backward();
        });
      };
      assert.throws(() => attempt(1), RangeError);
      const [tensors, memory] = [liveTensors(), device.memory.inUse];
      assert.throws(() => attempt(1), RangeError);
      assert.equal(liveTensors(), tensors);
      assert.equal(device.memory.inUse, memory);
      attempt(2);
      for (const each of [x.grad as Tensor, x]) each.dispose();
    },
  },
  ...[false, true].map(
    (cpuCheckpointing): Case => ({
      name: `attention is kept and not computed again${cpuCheckpointing ? ', inputs in host memory' : ''}`,
      run: (device) =>
        under({ keepAttention: true, cpuCheckpointing }, () => attentionKept(device)),
    }),
  ),
  {
    name: 'in host memory, attention is kept if its queries see many keys',
    run(device) {
      const runs = (keys: number, options: Options, window?: number): number => {
        const [x, y] = [leaf([1, 1, 2, 8], device), leaf([1, 1, keys, 8], device)];
        const reach = window === undefined ? {} : { causal: true, window };
        const through = (q: Tensor, k: Tensor): Tensor => attention(q, k, k.sin(), reach);
        const loss = (run: typeof checkpoint): Tensor =>
          run(through, x.sin(), y.sin()).square().sum();
        return under(options, () => {
          const out = loss(checkpoint);
          const counts = countOps(() => scope(() => out.backward()));
          out.dispose();
          for (const each of [x, y]) {
            each.grad?.dispose();
            each.grad = null;
          }
          equalsPlain([x, y], loss, device);
          return counts.Attention ?? 0;
        });
      };
      assert.equal(runs(4100, { cpuCheckpointing: true }), 0);
      assert.equal(runs(4000, { cpuCheckpointing: true }), 1);
      assert.equal(runs(4100, { cpuCheckpointing: true }, 64), 1);
      assert.equal(runs(4100, { cpuCheckpointing: true, keepAttention: false }), 1);
      assert.equal(runs(4100, {}), 1);
      assert.equal(runs(5, { cpuCheckpointing: true, keepAttention: true }), 0);
    },
  },
  {
    name: 'kept attention leaves the device for host memory, until its replay is near',
    run(device) {
      const x = leaf([1, 64, 24], device);
      /** Memory after the forward, and before the backward of each segment's attention. */
      const heldBytes = (keepAttention: boolean): number[] =>
        under({ cpuCheckpointing: true, keepAttention }, () => {
          const w = leaf([24, 8], device);
          const before = device.memory.inUse;
          const seen: number[] = [];
          const look = (): unknown => seen.push(device.memory.inUse - before);
          const layer = (y: Tensor): Tensor => {
            const out = linear(causalSelfAttentionPacked(y, 2), w);
            beforeBackward(out, look);
            return out;
          };
          scope(() => {
            const out = checkpointSequential([layer, layer, layer], null, x.sin()).sum();
            look();
            out.backward();
          });
          for (const each of [x.grad as Tensor, w.grad as Tensor, w]) each.dispose();
          x.grad = null;
          return seen;
        });
      const [kept, again] = [heldBytes(true), heldBytes(false)];
      const more = kept.map((bytes, i) => bytes - (again[i] as number));
      // Pinned memory of a CPU counts as memory of the device, and stays for the next step.
      const pinned = device.kind === 'cpu' ? (more[0] as number) : 0;
      assert.deepEqual(more, [pinned, pinned, pinned, pinned]);
      x.dispose();
    },
  },
  ...[false, true].map(
    (cpuCheckpointing): Case => ({
      name: `keepLastSegment runs the last segment once${cpuCheckpointing ? ', inputs in host memory' : ''}`,
      run(device) {
        const [x, w] = [leaf([1, 6, 24], device), leaf([24, 8], device)];
        const layer = (y: Tensor): Tensor => linear(causalSelfAttentionPacked(y.tanh(), 2), w);
        /** Ops of the backward through three layers; the gradients of x and w. */
        const through = (options: Options): [Record<string, number>, number[][]] =>
          under({ cpuCheckpointing, ...options }, () => {
            const layers = [layer, layer, layer];
            const out = scope(() => checkpointSequential(layers, null, x.sin()).square().sum());
            const counts = countOps(() => scope(() => out.backward()));
            out.dispose();
            const values = [x, w].map((each) => {
              const grad = each.grad as Tensor;
              each.grad = null;
              const numbers = grad.toArray();
              grad.dispose();
              return numbers;
            });
            return [counts, values];
          });
        const [tensors, memory] = [liveTensors(), device.memory.inUse];
        const [all, expected] = through({});
        assert.deepEqual([all.Unary, all.Attention], [3, 3]);
        for (const keepAttention of [false, true]) {
          const [counts, values] = through({ keepAttention, keepLastSegment: true });
          assert.equal(counts.Unary, 2);
          assert.equal(counts.Attention ?? 0, keepAttention ? 0 : 2);
          assert.deepEqual(values, expected);
        }
        assert.equal(liveTensors(), tensors);
        assert.equal(device.memory.inUse, memory);
        for (const each of [x, w]) each.dispose();
      },
    }),
  ),
  {
    name: 'a function that calls other attentions when it runs again is refused',
    run(device) {
      const x = leaf([1, 3, 24], device);
      const attempt = (heads: readonly number[]): void => {
        const rest = [...heads];
        scope(() => {
          const out = checkpoint((y: Tensor) => {
            const count = rest.shift() as number;
            const wide = count === 0 ? concat([y, y], 1) : y;
            const first = causalSelfAttentionPacked(wide, 2).sum();
            return count > 1 ? causalSelfAttentionPacked(y, 4).sum().add(first) : first;
          }, x.sin());
          out.backward();
        });
      };
      const isRefusal = (error: unknown): boolean =>
        error instanceof DsError && error.code === 'DS_AUTOGRAD' && /attention/.test(error.message);
      under({ keepAttention: true }, () => {
        attempt([1, 1]);
        assert.throws(() => attempt([1, 2]), isRefusal);
        const [tensors, memory] = [liveTensors(), device.memory.inUse];
        assert.throws(() => attempt([1, 2]), isRefusal);
        assert.throws(() => attempt([1, 0]), isRefusal);
        assert.equal(liveTensors(), tensors);
        assert.equal(device.memory.inUse, memory);
      });
      x.dispose();
    },
  },
];

/** Both forms of attention, in segments, and in nested segments. */
function attentionKept(device: Device): void {
  const [x, w] = [leaf([2, 5, 24], device), leaf([24, 8], device)];
  const attendPacked = (y: Tensor): Tensor => linear(causalSelfAttentionPacked(y.tanh(), 2), w);
  const apart = (y: Tensor): Tensor => {
    const q = y.reshape([2, 5, 3, 8]).transpose(1, 2);
    return attention(q, q.sin(), q.cos()).transpose(1, 2).reshape([2, 5, 24]);
  };
  const loss = (run: typeof checkpoint): Tensor => {
    const y = run(apart, run(attendPacked, x.sin()));
    return run((z: Tensor) => dropout(run(apart, run(attendPacked, z)), 0.2).square(), y).sum();
  };
  const out = loss(checkpoint);
  const counts = countOps(() => scope(() => out.backward()));
  assert.equal(counts.Attention, undefined);
  assert.equal(counts.AttentionBackward, 4);
  out.dispose();
  for (const each of [x, w]) {
    each.grad?.dispose();
    each.grad = null;
  }
  equalsPlain([x, w], loss, device);
}
