// Formats a profile as text, in DeepSpeed's parts: summary, aggregate by depth, module tree.
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import type { ModelProfile, ModuleProfile } from './profile.js';

/** Options of formatProfile(). */
export interface ReportOptions {
  /** Deepest level of the aggregate. 0: the model, -1: all levels. Default: -1. */
  moduleDepth?: number;
  /** Module classes per level of the aggregate. Default: 1. */
  topModules?: number;
  /** Whether to print the module tree. Default: true. */
  detailed?: boolean;
  /** Recompute factor of DeepSpeed's estimate: (2 + factor) times the forward. Default: 0. */
  recomputeFwdFactor?: number;
}

const WIDTH = 78;
const formatHeading = (title: string): string => {
  const left = Math.floor((WIDTH - title.length - 2) / 2);
  return `${'-'.repeat(left)} ${title} ${'-'.repeat(WIDTH - title.length - 2 - left)}`;
};

/** Formats 1234567 as "1.23 M". Units are powers of 1000. */
export function formatCount(value: number, unit = ''): string {
  const prefixes = ['', 'K', 'M', 'G', 'T', 'P', 'E'];
  const roundPower = (power: number): number => Number((value / 1000 ** power).toFixed(2));
  let power = 0;
  while (roundPower(power) >= 1000 && power < prefixes.length - 1) power++;
  return `${roundPower(power)} ${prefixes[power]}${unit}`.trimEnd();
}

/** Formats milliseconds as "1.23 s", "4.56 ms" or "7.89 us". */
export function formatDuration(ms: number): string {
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return ms >= 1 ? `${ms.toFixed(2)} ms` : `${(ms * 1000).toFixed(2)} us`;
}

/** Formats FLOPs per time as a rate, or "-" without a time. */
function formatRate(flops: number, ms: number): string {
  return ms > 0 ? formatCount((flops * 1000) / ms, 'FLOPS') : '-';
}

const formatPercent = (share: number): string => `${Number((100 * share).toFixed(2))}%`;

/**
 * Returns the whole report, without a final line break. Throws DS_ARGUMENT for unknown or invalid
 * options.
 */
export function formatProfile(profile: ModelProfile, given: ReportOptions = {}): string {
  const options = readOptions('formatProfile', given, namesOf.ReportOptions);
  const { moduleDepth = -1, topModules = 1, detailed = true, recomputeFwdFactor = 0 } = options;
  requireInteger('formatProfile moduleDepth', moduleDepth, -1);
  requireInteger('formatProfile topModules', topModules, 1);
  requireFinite('formatProfile recomputeFwdFactor', recomputeFwdFactor, 0);
  const lines = [
    formatHeading('Flops Profiler'),
    ...formatSummary(profile, recomputeFwdFactor),
    '',
    formatHeading('Aggregated Profile'),
    `Top ${topModules} module classes by params, MACs and forward latency at each depth:`,
    ...aggregateByDepth(profile.model, moduleDepth).flatMap((level, depth) =>
      formatLevel(level, depth, topModules),
    ),
  ];
  if (detailed)
    lines.push('', formatHeading('Detailed Profile'), ...NOTES, ...formatTree(profile.model, ''));
  return [...lines, '-'.repeat(WIDTH)].join('\n');
}

const formatRow = (name: string, value: string | number): string =>
  `${`${name}:`.padEnd(54)}${value}`;

function formatSummary(
  { device, parameters, work, engine, model }: ModelProfile,
  factor: number,
): string[] {
  const { forward, backward, recompute } = work;
  const lines = [
    ...(engine ? [formatRow('global step', engine.step)] : []),
    formatRow('device', device),
    ...(engine
      ? [formatRow('samples, in micro-batches', `${engine.samples} in ${engine.microBatches}`)]
      : [formatRow('forward calls', model.calls)]),
    formatRow('params', formatCount(parameters)),
    formatRow('fwd MACs', formatCount(forward.macs, 'MACs')),
    formatRow('fwd flops', formatCount(forward.flops)),
  ];
  if (backward.flops > 0) {
    const estimate = (2 + factor) * forward.flops;
    const counted = backward.flops + recompute.flops;
    lines.push(
      formatRow('bwd flops', formatCount(backward.flops)),
      formatRow('recomputed fwd flops', formatCount(recompute.flops)),
      formatRow(
        `(bwd + recomputed) / (${2 + factor} * fwd), DeepSpeed's estimate`,
        (counted / estimate).toFixed(4),
      ),
    );
  }
  const fwdMs = engine ? engine.latencyMs.forward : model.latencyMs;
  lines.push(
    formatRow('fwd latency', formatDuration(fwdMs)),
    formatRow('fwd FLOPS', formatRate(forward.flops, fwdMs)),
  );
  return engine ? [...lines, ...formatStep(engine, work)] : lines;
}

function formatStep(
  engine: NonNullable<ModelProfile['engine']>,
  work: ModelProfile['work'],
): string[] {
  const { backward, step, total } = engine.latencyMs;
  const inBackward = work.backward.flops + work.recompute.flops;
  return [
    formatRow('bwd latency', formatDuration(backward)),
    formatRow('bwd FLOPS, recomputation included', formatRate(inBackward, backward)),
    formatRow('step latency', formatDuration(step)),
    formatRow('iter latency', formatDuration(total)),
    formatRow(
      'model FLOPS = (fwd + bwd) / iter latency',
      formatRate(work.forward.flops + work.backward.flops, total),
    ),
    formatRow('samples/second', total > 0 ? ((1000 * engine.samples) / total).toFixed(2) : '-'),
  ];
}

function formatLevel(level: readonly TypeTotals[], depth: number, top: number): string[] {
  const best = (value: (of: TypeTotals) => number, text: (n: number) => string): string =>
    [...level]
      .sort((a, b) => value(b) - value(a))
      .slice(0, top)
      .map((of) => `${of.type}: ${text(value(of))}`)
      .join(', ');
  return [
    `depth ${depth}:`,
    `    params      - ${best(({ parameters }) => parameters, formatCount)}`,
    `    MACs        - ${best(
      ({ macs }) => macs,
      (n) => formatCount(n, 'MACs'),
    )}`,
    `    fwd latency - ${best(({ latencyMs }) => latencyMs, formatDuration)}`,
  ];
}

const NOTES = [
  'For each module: params and their share, forward MACs and their share, forward latency and its',
  'share, forward FLOPS, backward flops and recomputed flops (if any). "rest" is the work of a',
  'module itself: its own ops and its fused submodules ("fused"), which have no values of their own.',
  'Counts come from shapes, not from hardware counters.',
  '',
];

function formatTree(node: ModuleProfile, indent: string): string[] {
  const label = node.name ? `(${node.name}): ${node.type}` : node.type;
  const params = `${formatCount(node.parameters)} = ${formatPercent(node.share.parameters)} Params`;
  if (node.calls === 0 && node.work.forward.flops === 0 && node.work.backward.flops === 0) {
    return [`${indent}${label}(${params}, fused)`];
  }
  const { forward, backward, recompute } = node.work;
  const facts = [
    params,
    `${formatCount(forward.macs, 'MACs')} = ${formatPercent(node.share.macs)} MACs`,
    `${formatDuration(node.latencyMs)} = ${formatPercent(node.share.latency)} latency`,
    formatRate(forward.flops, node.latencyMs),
  ];
  if (backward.flops > 0) facts.push(`bwd ${formatCount(backward.flops)}`);
  if (recompute.flops > 0) facts.push(`recomputed ${formatCount(recompute.flops)}`);
  const head = `${indent}${label}(${facts.join(', ')}`;
  if (node.children.length === 0) return [`${head})`];
  const inner = `${indent}  `;
  return [
    head,
    ...node.children.flatMap((child) => formatTree(child, inner)),
    `${inner}rest: ${formatRest(node)}`,
    `${indent})`,
  ];
}

function formatRest({ own, ownLatencyMs }: ModuleProfile): string {
  const facts = [formatCount(own.forward.macs, 'MACs'), formatDuration(ownLatencyMs)];
  if (own.backward.flops > 0) facts.push(`bwd ${formatCount(own.backward.flops)}`);
  if (own.recompute.flops > 0) facts.push(`recomputed ${formatCount(own.recompute.flops)}`);
  return facts.join(', ');
}

interface TypeTotals {
  type: string;
  parameters: number;
  /** MACs of the forward. */
  macs: number;
  /** Device milliseconds of the forward. */
  latencyMs: number;
}

/** Returns one list per level, starting with the model. `deepest` -1: all levels. */
function aggregateByDepth(model: ModuleProfile, deepest: number): TypeTotals[][] {
  const levels: TypeTotals[][] = [];
  const last = deepest < 0 ? Number.POSITIVE_INFINITY : deepest;
  for (let level = [model]; level.length > 0 && levels.length <= last; ) {
    levels.push(sumByType(level));
    level = level.flatMap(({ children }) => children);
  }
  return levels;
}

function sumByType(modules: readonly ModuleProfile[]): TypeTotals[] {
  const sums = new Map<string, TypeTotals>();
  for (const { type, parameters, work, latencyMs } of modules) {
    const sum = sums.get(type) ?? { type, parameters: 0, macs: 0, latencyMs: 0 };
    sum.parameters += parameters;
    sum.macs += work.forward.macs;
    sum.latencyMs += latencyMs;
    sums.set(type, sum);
  }
  return [...sums.values()];
}
