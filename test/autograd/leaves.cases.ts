// Ownership of a leaf's gradient, roots and seeds of backward(), and slopes at kinks and at edges
// of domains.
import assert from 'node:assert/strict';
import { DsError, type DsErrorCode } from '../../lib/errors.js';
import { cpu, type Device } from '../../lib/runtime/device.js';
import {
  backward,
  type CustomFunction,
  customFunction,
  liveTensors,
  ones,
  pow,
  scope,
  Tensor,
  zeros,
} from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const count = (device: Device): [number, number] => [liveTensors(), device.memory.inUse];

/** A case that leaves no tensor and no memory behind, although it releases no gradient. */
function tidyCase(name: string, body: (device: Device) => void): Case {
  return {
    name: `leaves: ${name}`,
    run(device) {
      const before = count(device);
      body(device);
      assert.deepEqual(count(device), before, 'live tensors and bytes');
    },
  };
}

function leafOf(values: number[], device: Device): Tensor {
  return Tensor.from(values, { device }).requireGrad();
}

const gradientOf = (leaf: Tensor): number[] => (leaf.grad as Tensor).toArray();

function expectError(code: DsErrorCode, text: RegExp, body: () => unknown): void {
  assert.throws(body, (error: unknown) => {
    assert.ok(error instanceof DsError, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, text);
    return true;
  });
}

/** The gradients of sum(base^exponent). */
function powGradients(base: number[], exponent: number[], device: Device): [number[], number[]] {
  return scope(() => {
    const [a, b] = [leafOf(base, device), leafOf(exponent, device)];
    pow(a, b).sum().backward();
    return [gradientOf(a), gradientOf(b)];
  });
}

export const cases: Case[] = [
  tidyCase("a gradient goes with its leaf's scope", (device) => {
    for (let i = 0; i < 3; ++i) {
      scope(() => {
        const leaf = leafOf([1, 2, 3], device);
        leaf.square().sum().backward();
        leaf.mul(2).sum().backward();
        assert.deepEqual(gradientOf(leaf), [4, 6, 8]);
      });
    }
  }),
  tidyCase('a gradient goes when its leaf is disposed of', (device) => {
    const leaf = leafOf([1, 2], device);
    scope(() => leaf.square().sum().backward());
    const { grad } = leaf;
    assert.deepEqual(grad?.toArray(), [2, 4]);
    leaf.dispose();
    assert.equal(grad.isDisposed, true);
    assert.equal(leaf.grad, null);
  }),
  tidyCase('a gradient leaves a scope with its leaf, and alone', (device) => {
    const [leaf, alone] = scope(() => {
      const returned = leafOf([3], device);
      const other = leafOf([4], device);
      backward([returned.square().sum(), other.square().sum()]);
      return [returned, other.grad as Tensor];
    });
    assert.deepEqual(gradientOf(leaf), [6]);
    assert.deepEqual(alone.toArray(), [8]);
    leaf.dispose();
    alone.dispose();
    const kept = scope(() => {
      const inner = leafOf([5], device);
      inner.square().sum().backward();
      inner.keep();
      return { values: gradientOf(inner), inner };
    });
    assert.deepEqual(gradientOf(kept.inner), kept.values);
    kept.inner.dispose();
  }),
  tidyCase('a root that is named twice counts twice, and a leaf is a root too', (device) => {
    scope(() => {
      const leaf = leafOf([2], device);
      const loss = leaf.square().sum();
      backward([loss, loss]);
      assert.deepEqual(gradientOf(leaf), [8]);
      leaf.backward();
      assert.deepEqual(gradientOf(leaf), [9]);
      const wide = leafOf([1, 1], device);
      const reported: Tensor[] = [];
      wide.onGradReady = (each) => reported.push(each);
      backward([wide.mul(3).sum(), wide], [null, Tensor.from([10, 20], { device })]);
      assert.deepEqual(gradientOf(wide), [13, 23]);
      assert.deepEqual(reported, [wide]);
      const middle = wide.mul(2);
      backward([middle.square().sum(), middle], [null, ones([2], { device })]);
      assert.deepEqual(gradientOf(wide), [13 + 8 + 2, 23 + 8 + 2]);
    });
  }),
  tidyCase('wrong roots and seeds are typed errors that change nothing', (device) => {
    scope(() => {
      const x = leafOf([1, 2], device);
      const y = x.square();
      const seed = (shape: number[], dtype: 'f32' | 'f64') => ones(shape, { device, dtype });
      expectError('DS_SHAPE', /seed like its root, \[2\] f32, got \[1, 2\]/, () =>
        y.backward(seed([1, 2], 'f32')),
      );
      expectError('DS_DTYPE', /got \[2\] f64.*\.to\('f32'\)/, () => y.backward(seed([2], 'f64')));
      const tensor = seed([2], 'f32');
      expectError('DS_ARGUMENT', /at most 1 seeds/, () => backward(y, [tensor, tensor]));
      expectError('DS_ARGUMENT', /its seed, got an array \[2\]/, () =>
        backward(y, [2 as unknown as Tensor]),
      );
      expectError('DS_ARGUMENT', /got an array \[\]/, () => backward([]));
      expectError('DS_AUTOGRAD', /a scalar loss or a seed/, () => backward([y.sum(), y]));
      expectError('DS_AUTOGRAD', /requires a gradient.*requireGrad/, () =>
        zeros([], { device }).backward(),
      );
      if (device !== cpu()) {
        expectError('DS_DEVICE', /on cpu/, () => y.backward(ones([2])));
      }
      assert.equal(x.grad, null);
      y.backward(tensor);
      assert.deepEqual(gradientOf(x), [2, 4]);
    });
  }),
  tidyCase("pow's slopes at base 0 and exponent 0 are PyTorch's", (device) => {
    const inf = Number.POSITIVE_INFINITY;
    const [base, exponent] = powGradients([0, 0, 0, 0, 2, 0, -2], [0, 1, 2, 0.5, 0, -1, 2], device);
    assert.deepEqual(base, [0, 1, 0, inf, 0, -inf, -4]);
    const log2 = Math.fround(Math.log(2));
    assert.deepEqual(exponent.slice(0, 4), [0, 0, 0, 0]);
    assert.ok(Math.abs((exponent[4] as number) - log2) < 1e-6);
    assert.equal(exponent[5], -inf);
    assert.ok(Number.isNaN(exponent[6]));
    scope(() => {
      const x = leafOf([0, 3], device);
      x.pow(0).sum().backward();
      assert.deepEqual(gradientOf(x), [0, 0]);
    });
  }),
  tidyCase(
    'operands of maximum and minimum that are equal share the gradient, as in PyTorch',
    (device) => {
      for (const op of ['maximum', 'minimum'] as const) {
        scope(() => {
          const [a, b] = [leafOf([1, 2, 3, -0], device), leafOf([2, 2, 1, 0], device)];
          a[op](b)
            .mul(Tensor.from([1, 3, 1, 5], { device }))
            .sum()
            .backward();
          const [more, less] = op === 'maximum' ? [b, a] : [a, b];
          assert.deepEqual(gradientOf(more), [1, 1.5, 0, 2.5]);
          assert.deepEqual(gradientOf(less), [0, 1.5, 1, 2.5]);
          const [x, low] = [leafOf([-1, 2, 3], device), leafOf([2], device)];
          x.clamp(low, 3).sum().backward();
          assert.deepEqual([gradientOf(x), gradientOf(low)], [[0, 1, 1], [1]]);
        });
      }
    },
  ),
  tidyCase(
    "norms have PyTorch's slopes where elements are 0 or NaN, and atan2 at the origin",
    (device) => {
      scope(() => {
        const expectSlopes = (leaf: Tensor, expected: number[]): void =>
          gradientOf(leaf).forEach((slope, i) => {
            assert.ok(Math.abs(slope - (expected[i] as number)) < 1e-5, `${i}: ${slope}`);
          });
        const x = leafOf([0, 4, 0, 9], device);
        x.norm(0.5).backward();
        expectSlopes(x, [0, 5 / 2, 0, 5 / 3]);
        for (const p of [2, 3, 0.5]) {
          const nan = leafOf([Number.NaN, 1], device);
          nan.norm(p).backward();
          assert.ok(gradientOf(nan).every(Number.isNaN), `p ${p}: ${gradientOf(nan)}`);
        }
        const [y, z] = [leafOf([0, 0, 3], device), leafOf([0, 2, 4], device)];
        y.atan2(z).sum().backward();
        expectSlopes(y, [0, 0.5, 0.16]);
        expectSlopes(z, [0, 0, -0.12]);
      });
    },
  ),
  tidyCase('a custom function that gives what is no gradient says so by its name', (device) => {
    const own = (backward: unknown, forward: unknown = (_: unknown, x: Tensor) => x.mul(2)) =>
      customFunction({ name: 'own', forward, backward } as CustomFunction<Tensor>);
    const wrong: [RegExp, unknown, number][] = [
      [/^own backward: .* input 0, or null, got undefined/, () => undefined, 1],
      [/^own backward: .* input 0, or null, got 3/, () => 3, 1],
      [/^own backward: .* each of 1 inputs, got 2/, (_: unknown, g: Tensor) => [g, g], 1],
      [/^own backward: .* input 1, or null, got undefined/, (_: unknown, g: Tensor) => g, 2],
    ];
    for (const [text, rule, count] of wrong) {
      scope(() => {
        const inputs = [leafOf([1, 2], device), leafOf([3, 4], device)].slice(0, count);
        const out = own(rule)(...inputs).sum();
        expectError('DS_ARGUMENT', text, () => out.backward());
      });
    }
    scope(() => {
      const x = leafOf([1, 2], device);
      const summed = own((_: unknown, g: Tensor) => g.sum())(x).sum();
      expectError('DS_SHAPE', /^own backward: .* shape \[2\], got \[\] f32/, () =>
        summed.backward(),
      );
      const text = /^own forward: expected a tensor, got undefined/;
      expectError('DS_ARGUMENT', text, () =>
        own(
          () => null,
          () => {},
        )(x),
      );
      expectError('DS_ARGUMENT', /^own backward: expected a function/, () => own(undefined));
      own(() => null)(x)
        .sum()
        .backward();
      assert.equal(x.grad, null);
    });
  }),
  tidyCase('a leaf that a custom function returns stays one', (device) => {
    scope(() => {
      const [x, w] = [leafOf([1, 2], device), leafOf([3, 4], device)];
      const held = customFunction({ forward: () => w, backward: (_, grad) => grad });
      held(x).sum().backward();
      w.mul(5).sum().backward();
      assert.deepEqual(
        [gradientOf(x), gradientOf(w)],
        [
          [1, 1],
          [5, 5],
        ],
      );
    });
  }),
];
