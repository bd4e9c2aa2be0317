// SGD, Adagrad and Lion: every variant of the rule, every dtype of gradient and weight, skipped steps and denormals.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  closeSameBits,
  exact,
  input,
  type MatrixCase,
  type OpName,
  opCase,
  sameAs,
  updated,
} from './harness.js';
import { aligned, oddSizes, unaligned } from './layouts.js';
import type { Random } from './numbers.js';

const { abs, sign, sqrt } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

const flush = (x: number): number => (abs(x) < 2 ** -126 ? 0 : x);

/** A rule with its settings: one parameter and its state (null without one) after an update by g, in f64. */
interface Rule {
  op: OpName;
  title: string;
  /** The operand that holds the state, and whether its old values are positive or do not count. */
  state: { name: string; values: 'signed' | 'positive' | 'poison' } | null;
  args: Record<string, unknown>;
  step(g: number, p: number, state: number): { p: number; state: number };
}

const lr = 1e-2;
const weightDecay = 0.1;

function sgd(variant: {
  momentum?: number;
  dampening?: number;
  nesterov?: boolean;
  first?: boolean;
}): Rule {
  const { momentum = 0.9, dampening = 0, nesterov = false, first = false } = variant;
  return {
    op: 'Sgd',
    title: JSON.stringify(variant),
    state: { name: 'momentumBuffer', values: first ? 'poison' : 'signed' },
    args: { lr, weightDecay, momentum, dampening, nesterov, first },
    step(grad, p, buffer) {
      const g = grad + weightDecay * p;
      const state = first ? g : flush(momentum * buffer + (1 - dampening) * g);
      return { p: p - lr * (nesterov ? g + momentum * state : state), state };
    },
  };
}

/** The settings of momentum are poisoned: without a buffer they do not count. */
const plainSgd: Rule = {
  op: 'Sgd',
  title: 'without momentum',
  state: null,
  args: { lr, weightDecay, momentum: 9, dampening: 9, nesterov: true, first: false },
  step: (g, p) => ({ p: p - lr * (g + weightDecay * p), state: 0 }),
};

function adagrad(eps: number): Rule {
  return {
    op: 'Adagrad',
    title: `eps ${eps}`,
    state: { name: 'sum', values: 'positive' },
    args: { lr, eps, weightDecay },
    step(grad, p, sum) {
      const g = grad + weightDecay * p;
      const state = sum + g * g;
      return { p: p - (lr * g) / (sqrt(state) + eps), state };
    },
  };
}

function lion(beta1: number, beta2: number): Rule {
  return {
    op: 'Lion',
    title: `betas ${beta1} ${beta2}`,
    state: { name: 'm', values: 'signed' },
    args: { lr, beta1, beta2, weightDecay },
    step(g, p, m) {
      const direction = sign(flush(beta1 * m + flush((1 - beta1) * g)));
      const state = flush(beta2 * m + flush((1 - beta2) * g));
      return { p: p - lr * weightDecay * p - lr * direction, state };
    },
  };
}

interface Update {
  rule: Rule;
  n: number;
  grad: DType;
  weight: DType | null;
  apply: boolean;
  /** Size of gradients and state: below the normal range they are flushed. */
  size: number;
  /** The weight overwrites the gradient. */
  inPlace?: boolean;
}

function title({ rule, n, weight, apply, size, inPlace }: Update): string {
  const flags = [apply ? '' : 'skipped', size < 1 ? `of ${size}` : '', inPlace ? 'in place' : ''];
  return [rule.title, `[${n}] weight ${weight}`, ...flags.filter(Boolean)].join(' ');
}

function stateValues({ rule, n, size }: Update, random: Random): ArrayLike<number> | null {
  if (!rule.state || rule.state.values === 'poison') return null;
  if (rule.state.values === 'positive') return random.uniform(n, 0, 0.1).map((x) => x * size);
  return random.normal(n).map((x) => x * 0.1 * size);
}

function update(u: Update): MatrixCase {
  const { rule } = u;
  return opCase({
    op: rule.op,
    dtype: u.grad,
    title: title(u),
    build(random: Random) {
      const layout = u.n % 2 ? unaligned : aligned;
      const check = u.apply ? closeSameBits('f32', 1, 'tensor') : exact;
      const weightCheck = u.weight && u.apply ? closeSameBits(u.weight, 1, 'tensor') : exact;
      const gradients = random.normal(u.n).map((x, i) => (i % 7 === 3 ? 0 : x * u.size));
      const grad = input(u.grad, [u.n], gradients, layout);
      const old = stateValues(u, random);
      const state = rule.state && {
        [rule.state.name]: updated({ ...input('f32', [u.n], [], layout), values: old }, check),
      };
      const weight =
        u.weight && updated(input(u.weight, [u.n], random.normal(u.n), layout), weightCheck);
      return {
        operands: {
          master: updated(input('f32', [u.n], random.normal(u.n), layout), check),
          ...(state ?? { momentumBuffer: null }),
          grad: u.inPlace ? updated(grad, weightCheck) : grad,
          weight: u.inPlace ? sameAs(grad, 'grad') : weight,
          control: input('f32', [4], [0.5, u.apply ? 1 : 0, 1, 1]),
        },
        args: rule.args,
        reference: (all) => referenceOf(u, all),
      };
    },
  });
}

function referenceOf(
  { rule, n, apply }: Update,
  all: Record<string, Float64Array>,
): Record<string, Float64Array> {
  const name = rule.state?.name ?? 'none';
  const { master, grad } = all as { master: Float64Array; grad: Float64Array };
  const old = all[name] ?? new Float64Array(n);
  if (!apply) return { master, [name]: old, weight: master, grad: master };
  const [p, state] = [new Float64Array(n), new Float64Array(n)];
  for (let i = 0; i < n; ++i) {
    const g = flush(flush(grad[i]!) * 0.5);
    const next = rule.step(g, master[i]!, flush(old[i]!));
    [p[i], state[i]] = [next.p, next.state];
  }
  return { master: p, [name]: state, weight: p, grad: p };
}

function updates(rule: Rule): Update[] {
  const plain: Update = { rule, n: 257, grad: 'f32', weight: null, apply: true, size: 1 };
  const list: Update[] = [];
  for (const grad of narrow) {
    for (const weight of [null, ...narrow]) list.push({ ...plain, grad, weight });
    for (const n of [...oddSizes, 40_009]) list.push({ ...plain, n, grad, weight: grad });
    list.push({ ...plain, grad, weight: grad, inPlace: true });
    list.push({ ...plain, n: 1029, grad, weight: 'bf16' });
  }
  return [...list, { ...plain, n: 1029, size: 1e-39 }, { ...plain, n: 33, size: 1e-39 }];
}

/** Skipped steps, of rules whose old state the reference may read. */
function skips(rule: Rule): Update[] {
  const plain: Update = { rule, n: 257, grad: 'f32', weight: null, apply: false, size: 1 };
  return narrow.flatMap((grad) => [
    { ...plain, grad },
    { ...plain, grad, weight: 'bf16' as const },
    { ...plain, grad, weight: grad, n: 1029, inPlace: true },
  ]);
}

const rules = [plainSgd, sgd({}), adagrad(1e-10), lion(0.9, 0.99)];
const variants = [
  sgd({ first: true }),
  sgd({ nesterov: true }),
  sgd({ nesterov: true, first: true }),
  sgd({ dampening: 0.5, momentum: 0.7 }),
  sgd({ dampening: 0.5, first: true }),
  adagrad(1e-3),
  lion(0.95, 0.98),
];

export const cases: MatrixCase[] = [
  ...rules.flatMap((rule) => [...updates(rule), ...skips(rule)]).map(update),
  ...variants.flatMap((rule) => [
    update({ rule, n: 1029, grad: 'bf16', weight: 'bf16', apply: true, size: 1 }),
    update({ rule, n: 257, grad: 'f32', weight: null, apply: true, size: 1 }),
  ]),
];
