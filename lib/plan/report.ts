// Formats a plan as text: a table of setups, the memory of the best one, and the assumptions.

import { gibibytes } from '../runtime/byte-text.js';
import { required } from '../runtime/required.js';
import type { ModelSizes } from './model-sizes.js';
import {
  buildConfig,
  type Candidate,
  type Plan,
  type PlanRequest,
  rankCandidates,
} from './plan.js';
import { hostAdamRate } from './rates.js';

const SHOWN = 12;

/**
 * Returns a setup as text: "stage 2, optimizer on the host (ratio 0.5), checkpointing, micro-batch
 * 4 x 2".
 */
function formatSetup({ setup }: Candidate): string {
  const { tensor, stages } = setup;
  const { stage, optimizer, weights, ratio, checkpointing, microBatch, accumulation } = setup;
  const shares = [
    ...(ratio < 1 ? [`ratio ${ratio}`] : []),
    ...(setup.gpuShare > 0 ? [`gpu_share ${setup.gpuShare}`] : []),
  ];
  const share = shares.length > 0 ? ` (${shares.join(', ')})` : '';
  return [
    `stage ${stage}`,
    ...(tensor > 1 ? [`${tensor} ranks a layer`] : []),
    ...(stages > 1 ? [`${stages} pipeline stages`] : []),
    ...(optimizer === 'cpu' ? [`optimizer on the host${share}`] : []),
    ...(optimizer === 'nvme' ? ['optimizer on disk'] : []),
    ...(setup.speculates || optimizer !== 'cpu' ? [] : ['super_offload off']),
    ...(weights === 'cpu' ? [`weights on ${setup.weightsOnDisk ? 'disk' : 'the host'}`] : []),
    ...(checkpointing ? ['checkpointing'] : []),
    `micro-batch ${microBatch}${accumulation > 1 ? ` x ${accumulation}` : ''}`,
  ].join(', ');
}

/** Returns a table of the first setups and the best one, with a disk column if a setup needs it. */
function formatCandidates(
  candidates: readonly Candidate[],
  best: Candidate | null,
  { rates }: PlanRequest,
): string[] {
  const marked = candidates.length > 1 ? best : null;
  const rank = best ? candidates.indexOf(best) : 0;
  const first = candidates.slice(0, rank < SHOWN ? SHOWN : SHOWN - 1);
  const shown = rank < SHOWN ? first : [...first, required(best)];
  const usesDisk = shown.some(({ disk }) => disk > 0);
  const formatRow = (candidate: Candidate): string[] => [
    candidate === marked ? 'best' : candidate.fits ? 'fits' : 'too much',
    gibibytes(candidate.device),
    gibibytes(candidate.host),
    ...(usesDisk ? [gibibytes(candidate.disk)] : []),
    `${candidate.time.step.toFixed(3)} s`,
    `${(candidate.tokensPerSecond / 1000).toFixed(1)}k`,
    formatSetup(candidate),
  ];
  const memories = ['GPU', 'host', ...(usesDisk ? ['disk'] : [])];
  return formatTable([
    ['', ...memories, rates.isMeasured ? 'step' : 'step (estimated)', 'tokens/s', 'way'],
    ...shown.map(formatRow),
  ]);
}

function formatTable(rows: readonly string[][]): string[] {
  const widths = rows[0]?.map((_, i) => Math.max(...rows.map((row) => (row[i] ?? '').length)));
  return rows.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths?.[i] ?? 0))
      .join('  ')
      .trimEnd(),
  );
}

function formatParts(name: string, bytes: object): string {
  const list = Object.entries(bytes).map(
    ([part, value]) => `${part} ${gibibytes(value as number)}`,
  );
  return `${name}: ${list.join(', ')}`;
}

/** Returns the number of weights; packed weights count by their logical size. */
const countWeights = ({ parameters, packed }: ModelSizes): number =>
  parameters - packed.elements + packed.count;

function describeAdapters({ trained, weights, packed }: ModelSizes): string {
  if (trained.count >= weights.count) return '';
  const frozen =
    packed.count > 0 ? 'the linear layers of the blocks in 4 bits, frozen' : 'the rest frozen';
  return `, including ${(trained.count / 1e6).toFixed(2)}e6 of trained adapters in f32, ${frozen}`;
}

/** Returns a count as text: "0.124e9", or all digits of a small number. */
const formatCount = (count: number): string =>
  count < 1e7 ? count.toLocaleString('en') : `${(count / 1e9).toFixed(3)}e9`;

function listAssumptions(request: PlanRequest): string[] {
  const { rates, note, cluster, sizes, deviceMemory, hostMemory, diskMemory, max } = request;
  const { nodes, devicesPerNode, coresPerNode, nodeLink } = cluster;
  const adam = hostAdamRate(rates, coresPerNode) / 1e9;
  const link = nodes > 1 ? `, ${(nodeLink / 1e9).toFixed(0)} GB/s of network per machine` : '';
  return [
    ...(note ? [note] : []),
    `${formatCount(countWeights(sizes))} parameters${describeAdapters(sizes)}; ${nodes} x ${devicesPerNode} GPUs of ${gibibytes(deviceMemory)}, ${gibibytes(hostMemory)} of memory and ${coresPerNode} cores per machine${link}.`,
    `Rates of ${rates.name}${rates.isMeasured ? '' : ', estimated'}: ${(rates.matmul / 1e12).toFixed(0)} TFLOP/s in 16-bit products, ${(rates.deviceMemory / 1e12).toFixed(2)} TB/s of GPU memory, ${(rates.link / 1e9).toFixed(0)} GB/s between GPUs. PCIe: ${(rates.pcie / 1e9).toFixed(0)} GB/s in each direction. Adam on the host: ${adam.toFixed(0)} GB/s.`,
    ...(diskMemory > 0
      ? [
          `Disk: ${gibibytes(diskMemory)} per machine, shared by its ranks, at ${(rates.disk / 1e9).toFixed(1)} GB/s for concurrent reads and writes. An update reads and writes 12 bytes per parameter and overlaps with one micro-batch.`,
        ]
      : []),
    ...(max.tensor > 1 || max.stages > 1
      ? [
          'Tensor parallelism: ranks divide all weights and saved activations, except 4 widths of the residual stream. All-reduces of a block (2 forward, 2 backward, 2 in recomputation) do not overlap with compute. Pipeline: the first stage has embedding, head and one micro-batch in flight per stage; a step takes accumulation + stages - 1 micro-batches. Simulated, not measured.',
        ]
      : []),
    ...(sizes.trained.count < sizes.weights.count
      ? [
          'Adapters are in f32. Predictions for an 8B Llama on one H200 with checkpointing are within 5 % of measured bytes and 15 % of measured times. Others are simulated.',
        ]
      : []),
    rates.isMeasured
      ? 'Accuracy with AdamW: on 1 and 2 GPUs, bytes are within 5 % and times within 15 % of measurements. Plans for more GPUs are simulated.'
      : `Accuracy with AdamW: bytes are within 5 % of measurements. Times are estimates, because no run on ${rates.name} was measured. Rates are its published figures times the fractions that an H200 reaches.`,
  ];
}

/** Returns the needed and available bytes of each memory. */
function listNeeds({ device, host, disk }: Candidate, request: PlanRequest) {
  const { deviceMemory, hostMemory, diskMemory } = request;
  return [
    ['of each GPU', device, deviceMemory],
    ["of each machine's memory", host, hostMemory],
    ["of each machine's disk", disk, diskMemory],
  ] as const;
}

/** Returns the candidate with the smallest total shortage. */
function findNearest(candidates: readonly Candidate[], request: PlanRequest): Candidate {
  const shortageOf = (candidate: Candidate): number =>
    listNeeds(candidate, request).reduce(
      (sum, [, needed, there]) => sum + Math.max(0, needed - there),
      0,
    );
  return candidates.reduce((best, candidate) =>
    shortageOf(candidate) < shortageOf(best) ? candidate : best,
  );
}

/** Describes the memory shortage of a setup, or its use of each memory. */
function formatSummary(candidate: Candidate, request: PlanRequest): string {
  const needs = listNeeds(candidate, request);
  const short = needs.filter(([, needed, there]) => needed > there);
  const text = (short.length > 0 ? short : needs.filter(([, needed]) => needed > 0))
    .map(([of, needed, there]) => `${gibibytes(needed)} of the ${gibibytes(there)} ${of}`)
    .join(', ');
  return short.length > 0 ? `Does not fit: it needs ${text}.` : `Fits: ${text}.`;
}

/**
 * Formats the prediction of a configuration: its setups, the memory of the first one, and whether
 * it fits.
 */
export function formatPrediction(candidates: readonly Candidate[], request: PlanRequest): string {
  const { best } = rankCandidates(candidates);
  const candidate = best ?? required(candidates[0]);
  return [
    ...formatCandidates(candidates, best, request),
    '',
    formatSummary(candidate, request),
    formatParts('Each GPU', candidate.memory.device),
    formatParts('Each rank on the host', candidate.memory.host),
    ...(candidate.disk > 0 ? [`Each machine on its disk: ${gibibytes(candidate.disk)}`] : []),
    '',
    ...listAssumptions(request),
  ].join('\n');
}

/** Formats a plan: its first setups, the memory and ds_config.json of the best one, assumptions. */
export function formatPlan({ candidates, best }: Plan, request: PlanRequest): string {
  const more = candidates.length - SHOWN;
  const lines = [
    ...formatCandidates(candidates, best, request),
    ...(more > 0 ? [`and ${more} more; --json lists them.`] : []),
    '',
  ];
  if (best) {
    const { checkpointing } = best.setup;
    lines.push(
      `Best: ${formatSetup(best)}.`,
      formatParts('Each GPU', best.memory.device),
      formatParts('Each rank on the host', best.memory.host),
      ...(best.disk > 0 ? [`Each machine on its disk: ${gibibytes(best.disk)}`] : []),
      ...(checkpointing ? ['Create the model with activationCheckpointing: true.'] : []),
      JSON.stringify(buildConfig(best), null, 2),
    );
  } else {
    const nearest = findNearest(candidates, request);
    lines.push(
      `Nothing fits. The nearest is ${formatSetup(nearest)}.`,
      formatSummary(nearest, request),
      formatParts('Each GPU', nearest.memory.device),
      formatParts('Each rank on the host', nearest.memory.host),
    );
  }
  return [...lines, '', ...listAssumptions(request)].join('\n');
}
