// Draws random meshes from a seed; one rank may get a different batch.
import type { Axis, MeshOptions } from '../../lib/comm/index.js';
import { MeshShape } from '../../lib/comm/index.js';

/** The property of the batch that differs. */
export const DIFFERENCES = ['tokens', 'targets', 'shape', 'order', 'evaluated', 'none'] as const;
export type Difference = (typeof DIFFERENCES)[number];

export interface Trial {
  mesh: MeshOptions;
  /** Whether the mesh splits the model; otherwise ranks have replicas. */
  isCut: boolean;
  stage: 0 | 1 | 2 | 3;
  micros: number;
  what: Difference;
  /** The rank with the different batch, and the step and micro-batch. */
  rank: number;
  step: number;
  micro: number;
  /** Chooses the element that differs. */
  place: number;
}

export const STEPS = 3;

/** Meshes by their number of ranks. */
const MESHES: Readonly<Record<number, readonly MeshOptions[]>> = {
  2: [{ tp: 2 }, { sp: 2 }, { pp: 2 }, {}],
  3: [{ pp: 3 }, {}],
  4: [
    { tp: 4 },
    { sp: 4 },
    { pp: 4 },
    { tp: 2 },
    { sp: 2 },
    { pp: 2 },
    {},
    { tp: 2, sp: 2 },
    { tp: 2, pp: 2 },
  ],
};

/** mulberry32. */
export function randomOf(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) % below;
  };
}

export function trialOf(ranks: number, random: (below: number) => number): Trial {
  const pick = <T>(list: readonly T[]): T => list[random(list.length)] as T;
  const mesh = pick(MESHES[ranks] ?? []);
  const micros = 1 + random(2);
  const isCut = random(4) > 0;
  return {
    mesh,
    isCut,
    micros,
    what: pick(DIFFERENCES),
    rank: random(ranks),
    stage: pick(mesh.pp && isCut ? [0, 1] : [0, 1, 2, 3]) as Trial['stage'],
    step: random(STEPS),
    micro: random(micros),
    place: random(2 ** 20),
  };
}

const MODEL: readonly Axis[] = ['pp', 'sp', 'tp'];

/** The ranks that must get the same batch as the misled rank; empty if it may differ. */
export function othersOf(trial: Trial, ranks: number): number[] {
  const { rank, what, mesh, isCut } = trial;
  const shape = MeshShape.over(ranks, mesh);
  const last = shape.sizes.pp - 1;
  const reads = (value: number): boolean =>
    !isCut || [0, last].includes(shape.coordinates(value).pp);
  // A replica may be evaluated on one rank only.
  if (what === 'none' || (what === 'evaluated' && !isCut) || !reads(rank)) return [];
  return shape.ranksAlong(rank, ...MODEL).filter((value) => value !== rank && reads(value));
}

/** The fault in the ranks' reports of a trial; null without a fault. */
export function faultOf(trial: Trial, reports: readonly string[]): string | null {
  const others = othersOf(trial, reports.length);
  if (others.length === 0) {
    return reports.every((report) => report.startsWith('trained ')) ? null : 'failed without cause';
  }
  const names = (report: string): boolean =>
    new RegExp(`\\brank ${trial.rank}\\b`).test(report) &&
    others.some((other) => new RegExp(`\\brank ${other}\\b`).test(report));
  if (!reports.every((report) => report.startsWith('DS_COMM '))) return 'no DS_COMM on all ranks';
  return reports.every(names) ? null : 'does not name both ranks';
}
