// The settings that must equal stage 0 at every ZeRO stage, and the runs of the job that compares
// them.
import { tmpdir } from 'node:os';

import type { DsConfig } from '../../lib/index.js';
import type { Precision } from '../e2e/tiny-training.js';
import type { Setting } from './train-process.js';

type Zero = Exclude<NonNullable<DsConfig['zero_optimization']>, boolean>;

/**
 * Settings that agree in everything that may change a bit; the first one is the reference, at stage
 * 0.
 */
export interface Family {
  name: string;
  settings: Setting[];
}

/** Settings that may change bits, in addition to the order of sums. */
export interface Arithmetic {
  precision: Precision;
  /** Precision of gradient accumulation. Default: that of the weights. */
  gradients?: Precision;
  accumulation: number;
  clip: 0 | 1;
}

/** More than the number of skipped steps. */
export const FP16_STEPS = 7;

const EVERYTHING = 1e9;

/** With one element, every unit is its own bucket. */
const buckets = (elements: number): Zero => ({
  reduce_bucket_size: elements,
  allgather_bucket_size: elements === 1 ? 2 : elements,
});

/** Stage 3 that gathers on every use without prefetch, and stage 3 that keeps all weights. */
const gathers: Record<string, Zero> = {
  'no prefetch, nothing kept': {
    stage3_prefetch_bucket_size: 0,
    stage3_max_reuse_distance: 0,
    stage3_max_live_parameters: 0,
    stage3_param_persistence_threshold: 0,
  },
  'prefetch, nothing kept': {
    stage3_max_reuse_distance: 0,
    stage3_param_persistence_threshold: 0,
  },
  'small units persist': {
    stage3_max_reuse_distance: 0,
    stage3_param_persistence_threshold: 20_000,
  },
};

/** stages x {overlap on, off} x offload {off, optimizer} x buckets {one element, all}. */
function variants(): Variant[] {
  const all = [0, 1, 2, 3].flatMap((stage) =>
    [true, false].flatMap((overlap_comm) =>
      [1, EVERYTHING].flatMap((elements) =>
        ['none', 'cpu', 'speculative'].map((home) => ({
          name: `stage ${stage}, overlap ${overlap_comm}, buckets ${elements}, offload ${home}`,
          zero: { stage: stage as 0, overlap_comm, ...buckets(elements) },
          offload: home !== 'none',
          speculative: home === 'speculative',
        })),
      ),
    ),
  );
  // Offload is tested with ZeRO stages only.
  return all.filter(({ zero, offload }) => zero.stage !== 0 || !offload);
}

interface Variant extends Pick<Setting, 'name' | 'offload' | 'speculative' | 'nvme' | 'gpuShare'> {
  zero: Zero;
}

const special = (): Variant[] => [
  ...Object.entries(gathers).flatMap(([name, zero]) =>
    [false, true].map((offload) => ({
      name: `stage 3, ${name}, offload ${offload}`,
      zero: { stage: 3 as const, ...zero },
      offload,
      speculative: false,
    })),
  ),
  ...Object.entries({ kept: {}, ...gathers }).flatMap(([name, zero]) =>
    [false, true].map((speculative) => ({
      name: `stage 3, weights and optimizer offloaded, ${name}, speculative ${speculative}`,
      zero: { stage: 3 as const, offload_param: { device: 'cpu' as const }, ...zero },
      offload: true,
      speculative,
    })),
  ),
  ...[true, false].map((overlap_comm) => ({
    name: `stage 3, weights offloaded, nothing kept, overlap ${overlap_comm}`,
    zero: {
      stage: 3 as const,
      offload_param: { device: 'cpu' as const },
      overlap_comm,
      ...gathers['no prefetch, nothing kept'],
    },
    offload: false,
    speculative: false,
  })),
  // A shard of the tiny GPT-2's units has a few thousand elements.
  ...([1, 2, 3] as const).flatMap((stage) =>
    [false, true].map((speculative) => ({
      name: `stage ${stage}, sub-groups of 1000, offload, speculative ${speculative}`,
      zero: { stage, sub_group_size: 1000 },
      offload: true,
      speculative,
    })),
  ),
  {
    name: 'stage 3, weights and optimizer offloaded, sub-groups of 64',
    zero: { stage: 3, offload_param: { device: 'cpu' }, sub_group_size: 64 },
    offload: true,
    speculative: false,
  },
  ...(
    [
      [1, false],
      [2, false],
      [2, true],
      [3, true],
    ] as const
  ).map(([stage, speculative]) => ({
    name: `stage ${stage}, half of the offloaded state updated on the device, speculative ${speculative}`,
    zero: { stage, sub_group_size: 1000 },
    offload: true,
    speculative,
    gpuShare: 0.5,
  })),
  ...[false, true].map((speculative) => ({
    name: `stage 3, weights and optimizer offloaded, half of it updated on the device, speculative ${speculative}`,
    zero: { stage: 3 as const, offload_param: { device: 'cpu' as const }, sub_group_size: 1000 },
    offload: true,
    speculative,
    gpuShare: 0.5,
  })),
  ...([2, 3] as const).map((stage) => ({
    name: `stage ${stage}, state on disk, sub-groups of 1000`,
    zero: {
      stage,
      sub_group_size: 1000,
      ...(stage === 3 ? { offload_param: { device: 'cpu' as const } } : {}),
    },
    offload: true,
    speculative: false,
    nvme: tmpdir(),
  })),
  ...[false, true].map((offload) => ({
    name: `stage 3, weights on disk, nothing kept, state ${offload ? 'too' : 'on the device'}`,
    zero: {
      stage: 3 as const,
      sub_group_size: 1000,
      ...gathers['no prefetch, nothing kept'],
      offload_param: {
        device: 'nvme' as const,
        nvme_path: tmpdir(),
        buffer_count: 3,
        buffer_size: 1000,
        max_in_cpu: 2000,
      },
    },
    offload,
    speculative: false,
    nvme: tmpdir(),
  })),
  ...([1, 2, 3] as const).map((stage) => ({
    name: `stage ${stage}, all-reduce to the owner`,
    zero: { stage, reduce_scatter: false },
    offload: false,
    speculative: false,
  })),
];

/**
 * Enough steps that the unit order of the first step is used. With clipping, norms are above the
 * threshold, then below, then above again. With fp16 the first steps are skipped.
 */
function stepsOf({ precision, accumulation, clip }: Arithmetic): number {
  if (precision === 'fp16') return FP16_STEPS;
  if (clip === 0) return 4;
  return accumulation === 1 ? 7 : 5;
}

function family(arithmetic: Arithmetic): Family {
  const { precision, gradients, accumulation, clip } = arithmetic;
  const steps = stepsOf(arithmetic);
  const settings = [...variants(), ...special()]
    // Speculation requires gradients in the dtype of the weights.
    .filter(({ speculative }) => !speculative || !gradients)
    // Stages 2 and 3 sum ranks before micro-batches, stages 0 and 1 after: see families().
    .map(({ name, ...variant }) => ({ name, steps, ...arithmetic, ...variant }));
  const sums = gradients ? `, gradients summed in ${gradients}` : '';
  return { name: `${precision}${sums}, accumulation ${accumulation}, clip ${clip}`, settings };
}

/**
 * Families of settings that agree bit for bit. With accumulation, stages 2 and 3 reduce every
 * micro-batch and sum the shards, stages 0 and 1 sum first. These are two families, and their
 * references agree within a bound. If `halved`, the arithmetics take turns: the first one gets the
 * even settings, the second one the odd settings, and both the reference.
 */
export function families(arithmetics: readonly Arithmetic[], halved = false): Family[] {
  return arithmetics.flatMap((arithmetic, turn) => {
    const { name, settings } = family(arithmetic);
    const choose = (all: Setting[]): Setting[] =>
      halved ? all.filter((_, i) => i === 0 || i % 2 === turn % 2) : all;
    if (arithmetic.accumulation === 1) return [{ name, settings: choose(settings) }];
    const early = ({ zero }: Setting): boolean => Number((zero as Zero).stage ?? 0) >= 2;
    return [
      { name: `${name}, stages 0 and 1`, settings: choose(settings.filter((s) => !early(s))) },
      { name: `${name}, stages 2 and 3`, settings: choose(settings.filter(early)) },
    ];
  });
}
