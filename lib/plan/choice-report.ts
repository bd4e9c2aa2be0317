// Formats the configuration that a plan chooses for "auto", or the error if no configuration fits.
import type { ResolvedConfig } from '../../types/config.js';
import { DsError } from '../errors.js';
import { byteText } from '../runtime/byte-text.js';
import { type Parts, totalBytes } from './memory.js';
import type { Rates } from './rates.js';
import { addParts, formatNeeds, suggestSettings } from './shortages.js';
import type { AvailableMemory, CandidateMemory } from './zero-choice.js';

/** Inputs of the choice. */
interface ChoiceContext {
  available: AvailableMemory;
  isHost: boolean;
  /** Whether the activation memory is known. */
  knowsActivations: boolean;
  deviceName: string;
  ranks: number;
  rates: Rates;
}

/** Returns a choice as text: "stage 2, offload_optimizer cpu (ratio 0.5), offload_param none". */
function formatWay({
  config: { zero_optimization: zero },
}: CandidateMemory<ResolvedConfig>): string {
  const { stage, offload_optimizer: state, offload_param: param } = zero;
  const details = [
    ...(state.ratio < 1 ? [`ratio ${state.ratio}`] : []),
    ...(state.gpu_share === null ? [] : [`gpu_share ${state.gpu_share}`]),
    ...(state.super_offload === null ? [] : [`super_offload ${state.super_offload}`]),
  ];
  const suffix = details.length > 0 && state.device === 'cpu' ? ` (${details.join(', ')})` : '';
  return `stage ${stage}, offload_optimizer ${state.device}${suffix}, offload_param ${param.device}`;
}

/** Returns a line with the chosen configuration, its memory, and the predicted time of a step. */
export function formatChoice(
  best: CandidateMemory<ResolvedConfig>,
  context: ChoiceContext,
): string {
  const { setup, step } = best;
  const { knowsActivations } = context;
  const reason = context.isHost ? ', because the CPU computes in host memory' : '';
  const needTexts = listNeeds(best, context).map(
    ({ of, bytes, there }) => `${byteText(bytes)} of ${byteText(there)} of ${of}`,
  );
  const perRank = context.ranks > 1 ? ' for each rank' : '';
  const { name, isMeasured } = context.rates;
  const rateSource = isMeasured ? `the rates of an ${name}` : `estimated rates of the ${name}`;
  const time = step === null ? '' : `, ${step.toPrecision(2)} s a step by ${rateSource}`;
  const batch = knowsActivations
    ? ` with micro-batches of ${setup.microBatch} x ${setup.seq} tokens`
    : ', before activations';
  const mayGrow = best.host > context.available.host ? ' (a virtual machine may receive more)' : '';
  return `zero_optimization: ${formatWay(best)}${reason}: ${needTexts.join(', ')}${perRank}${mayGrow}${batch}${time}`;
}

interface MemoryNeed {
  of: string;
  tier: 'device' | 'host' | 'disk';
  parts: Parts;
  bytes: number;
  there: number;
}

/** Returns the needed and available bytes in each memory that limits the choice. */
function listNeeds(
  way: CandidateMemory<ResolvedConfig>,
  { available, isHost, deviceName }: ChoiceContext,
): MemoryNeed[] {
  const { memory, device, host, disk } = way;
  const ofDevice = { ...memory.device, margin: device - totalBytes(memory.device) };
  const ofHost = { ...memory.host, margin: host - totalBytes(memory.host) };
  const needs: MemoryNeed[] = [];
  if (available.device !== null) {
    const of = `the memory of ${deviceName}`;
    needs.push({ of, tier: 'device', parts: ofDevice, bytes: device, there: available.device });
  }
  const parts = isHost ? addParts([ofDevice, ofHost]) : ofHost;
  const bytes = isHost ? device + host : host;
  needs.push({ of: 'host memory', tier: 'host', parts, bytes, there: available.host });
  if (disk > 0) {
    needs.push({
      of: 'disk',
      tier: 'disk',
      parts: { optimizer: disk },
      bytes: disk,
      there: available.disk,
    });
  }
  return needs;
}

const FEWER_ACTIVATIONS =
  'Reduce train_micro_batch_size_per_gpu or training.sequenceLength, or set activationCheckpointing: true in the model.';

/**
 * Returns the DS_OUT_OF_MEMORY error with the shortage of `leanest`, the choice that needs the
 * least memory.
 */
export function nothingFitsError(
  leanest: CandidateMemory<ResolvedConfig>,
  context: ChoiceContext,
): DsError {
  const { available, ranks, knowsActivations } = context;
  const needs = listNeeds(leanest, {
    ...context,
    available: { ...available, host: available.hostAtMost },
  });
  const exceeded = needs.filter(({ bytes, there }) => bytes > there);
  const hints = [
    ...(knowsActivations && exceeded.some(({ parts }) => (parts.activations ?? 0) > 0)
      ? [FEWER_ACTIVATIONS]
      : []),
    ...exceeded.flatMap(({ tier }) => suggestSettings(tier, leanest.config)),
  ];
  const perRank = ranks > 1 ? ' for each rank' : '';
  return new DsError({
    code: 'DS_OUT_OF_MEMORY',
    op: 'initialize',
    expected: `${exceeded.map(({ of, parts }) => formatNeeds(of, parts)).join(', ')}${perRank} by the plan, with ${formatWay(leanest)}, the smallest choice of "auto"`,
    got: exceeded.map(({ there }) => byteText(there)).join(', '),
    hint: [...new Set(hints)].join(' '),
  });
}
