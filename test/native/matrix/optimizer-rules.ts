// SGD, Adagrad, RMSprop and Lion: every variant of the rule, every dtype of gradient and weight,
// skipped steps and denormals.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  type OpName,
  opCase,
  sameAs,
} from './harness.js';
import { aligned, oddSizes, unaligned } from './layouts.js';
import type { Random } from './numbers.js';

const { abs, max, sign, sqrt } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

const flush = (x: number): number => (abs(x) < 2 ** -126 ? 0 : x);

/**
 * The state operands and the kind of their old values; null for an absent one. "mean" is well below
 * the roots of "square", as the means of one series are. Their difference is therefore not
 * dominated by rounding.
 */
type States = Record<string, 'signed' | 'positive' | 'square' | 'mean' | 'poison' | null>;

/** A rule with its settings: one update of a parameter and its states by g, in f64. */
interface Rule {
  op: OpName;
  title: string;
  states: States;
  args: Record<string, unknown>;
  step(g: number, p: number, ...states: number[]): { p: number; states: number[] };
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
    states: { momentumBuffer: first ? 'poison' : 'signed' },
    args: { lr, weightDecay, momentum, dampening, nesterov, first },
    step(grad, p, buffer = 0) {
      const g = grad + weightDecay * p;
      const state = first ? g : flush(momentum * buffer + (1 - dampening) * g);
      return { p: p - lr * (nesterov ? g + momentum * state : state), states: [state] };
    },
  };
}

/** Momentum settings are poisoned: without a buffer they must have no effect. */
const plainSgd: Rule = {
  op: 'Sgd',
  title: 'without momentum',
  states: { momentumBuffer: null },
  args: { lr, weightDecay, momentum: 9, dampening: 9, nesterov: true, first: false },
  step: (g, p) => ({ p: p - lr * (g + weightDecay * p), states: [] }),
};

function adagrad(eps: number): Rule {
  return {
    op: 'Adagrad',
    title: `eps ${eps}`,
    states: { sum: 'positive' },
    args: { lr, eps, weightDecay },
    step(grad, p, sum = 0) {
      const g = grad + weightDecay * p;
      const state = sum + g * g;
      return { p: p - (lr * g) / (sqrt(state) + eps), states: [state] };
    },
  };
}

function lion(beta1: number, beta2: number): Rule {
  return {
    op: 'Lion',
    title: `betas ${beta1} ${beta2}`,
    states: { m: 'signed' },
    args: { lr, beta1, beta2, weightDecay },
    step(g, p, m = 0) {
      const direction = sign(flush(beta1 * m + flush((1 - beta1) * g)));
      const state = flush(beta2 * m + flush((1 - beta2) * g));
      return { p: p - lr * weightDecay * p - lr * direction, states: [state] };
    },
  };
}

function rmsprop(alpha: number, momentum: number, centered: boolean): Rule {
  const eps = 1e-3;
  return {
    op: 'Rmsprop',
    title: `${alpha} ${momentum}${centered ? ' centered' : ''}`,
    states: {
      squareAvg: 'square',
      gradAvg: centered ? 'mean' : null,
      momentumBuffer: momentum > 0 ? 'signed' : null,
    },
    // Without a buffer, momentum must have no effect.
    args: { lr, alpha, eps, weightDecay, momentum: momentum || 9 },
    step(grad, p, square = 0, ...others) {
      const g = grad + weightDecay * p;
      const s = flush(alpha * square + (1 - alpha) * g * g);
      const [mean = 0, buffer = 0] = centered ? others : [0, ...others];
      const m = flush(mean + (1 - alpha) * (g - mean));
      const d = g / (sqrt(max(0, centered ? s - m * m : s)) + eps);
      const b = momentum * buffer + d;
      const states = [s, ...(centered ? [m] : []), ...(momentum > 0 ? [b] : [])];
      return { p: p - lr * (momentum > 0 ? b : d), states };
    },
  };
}

interface Update {
  rule: Rule;
  n: number;
  grad: DType;
  weight: DType | null;
  apply: boolean;
  /** Magnitude of gradients and state; below the normal range they are flushed to zero. */
  size: number;
  /** The weight overwrites the gradient. */
  inPlace?: boolean;
}

function title({ rule, n, weight, apply, size, inPlace }: Update): string {
  const flags = [apply ? '' : 'skipped', size < 1 ? `of ${size}` : '', inPlace ? 'in place' : ''];
  return [rule.title, `[${n}] weight ${weight}`, ...flags.filter(Boolean)].join(' ');
}

function stateValues(
  { n, size }: Update,
  kind: States[string],
  random: Random,
): ArrayLike<number> | null {
  if (kind === 'poison') return null;
  if (kind === 'square') return random.uniform(n, 0.05, 0.1).map((x) => x * size);
  if (kind === 'mean') return random.normal(n).map((x) => x * 0.01 * size);
  if (kind === 'positive') return random.uniform(n, 0, 0.1).map((x) => x * size);
  return random.normal(n).map((x) => x * 0.1 * size);
}

/** The names of the present states, in the order of the rule. */
const present = ({ states }: Rule): string[] => Object.keys(states).filter((key) => states[key]);

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
      const states = Object.entries(rule.states).map(([name, kind]) => {
        const values = stateValues(u, kind, random);
        return [
          name,
          kind && inPlaceOperand({ ...input('f32', [u.n], [], layout), values }, check),
        ];
      });
      const weight =
        u.weight && inPlaceOperand(input(u.weight, [u.n], random.normal(u.n), layout), weightCheck);
      return {
        operands: {
          master: inPlaceOperand(input('f32', [u.n], random.normal(u.n), layout), check),
          ...Object.fromEntries(states),
          grad: u.inPlace ? inPlaceOperand(grad, weightCheck) : grad,
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
  const { master, grad } = all as { master: Float64Array; grad: Float64Array };
  const names = present(rule);
  const old = Object.fromEntries(names.map((name) => [name, all[name] ?? new Float64Array(n)]));
  if (!apply) return { ...old, master, weight: master, grad: master };
  const p = new Float64Array(n);
  const states = names.map(() => new Float64Array(n));
  for (let i = 0; i < n; ++i) {
    const g = flush(flush(grad[i]!) * 0.5);
    const next = rule.step(g, master[i]!, ...names.map((name) => flush(old[name]![i]!)));
    p[i] = next.p;
    next.states.forEach((value, k) => {
      states[k]![i] = value;
    });
  }
  const updated = Object.fromEntries(names.map((name, k) => [name, states[k]!]));
  return { ...updated, master: p, weight: p, grad: p };
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

/** Skipped steps of rules; the reference may read the old state of these rules. */
function skips(rule: Rule): Update[] {
  const plain: Update = { rule, n: 257, grad: 'f32', weight: null, apply: false, size: 1 };
  return narrow.flatMap((grad) => [
    { ...plain, grad },
    { ...plain, grad, weight: 'bf16' as const },
    { ...plain, grad, weight: grad, n: 1029, inPlace: true },
  ]);
}

const rules = [plainSgd, sgd({}), adagrad(1e-10), rmsprop(0.9, 0.8, true), lion(0.9, 0.99)];
const variants = [
  sgd({ first: true }),
  sgd({ nesterov: true }),
  sgd({ nesterov: true, first: true }),
  sgd({ dampening: 0.5, momentum: 0.7 }),
  sgd({ dampening: 0.5, first: true }),
  adagrad(1e-3),
  rmsprop(0.99, 0, false),
  rmsprop(0.95, 0, true),
  rmsprop(0.9, 0.8, false),
  lion(0.95, 0.98),
];

export const cases: MatrixCase[] = [
  ...rules.flatMap((rule) => [...updates(rule), ...skips(rule)]).map(update),
  ...variants.flatMap((rule) => [
    update({ rule, n: 1029, grad: 'bf16', weight: 'bf16', apply: true, size: 1 }),
    update({ rule, n: 257, grad: 'f32', weight: null, apply: true, size: 1 }),
  ]),
];
