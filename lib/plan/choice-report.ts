// Formats the plan's choice, or the error if nothing fits.
import type { ResolvedConfig } from '../../types/config.js';
import { DsError } from '../errors.js';
import { byteText } from '../runtime/byte-text.js';
import { type Parts, total } from './memory.js';
import type { Rates } from './rates.js';
import { addParts, needsText, settings } from './shortages.js';
import type { CandidateMemory, Room } from './zero-choice.js';

/** Inputs of the choice. */
interface Context {
  room: Room;
  isHost: boolean;
  /** Whether the activation memory is known. */
  isKnown: boolean;
  deviceName: string;
  ranks: number;
  rates: Rates;
}

/** Formats "stage 2, offload_optimizer cpu (ratio 0.5), offload_param none". */
function wayText({ config: { zero_optimization: zero } }: CandidateMemory<ResolvedConfig>): string {
  const { stage, offload_optimizer: state, offload_param: param } = zero;
  const more = [
    ...(state.ratio < 1 ? [`ratio ${state.ratio}`] : []),
    ...(state.gpu_share === null ? [] : [`gpu_share ${state.gpu_share}`]),
    ...(state.super_offload === null ? [] : [`super_offload ${state.super_offload}`]),
  ];
  const away = more.length > 0 && state.device === 'cpu' ? ` (${more.join(', ')})` : '';
  return `stage ${stage}, offload_optimizer ${state.device}${away}, offload_param ${param.device}`;
}

/** Formats the choice, its memory, and the time of a step. */
export function choiceLine(best: CandidateMemory<ResolvedConfig>, context: Context): string {
  const { setup, step } = best;
  const { isKnown } = context;
  const why = context.isHost ? ', because the CPU computes in host memory' : '';
  const texts = needsOf(best, context).map(
    ({ of, bytes, there }) => `${byteText(bytes)} of ${byteText(there)} of ${of}`,
  );
  const each = context.ranks > 1 ? ' for each rank' : '';
  const { name, isMeasured } = context.rates;
  const by = isMeasured ? `the rates of an ${name}` : `estimated rates of the ${name}`;
  const time = step === null ? '' : `, ${step.toPrecision(2)} s a step by ${by}`;
  const batch = isKnown
    ? ` with micro-batches of ${setup.microBatch} x ${setup.seq} tokens`
    : ', before activations';
  const mayGrow = best.host > context.room.host ? ' (a virtual machine may receive more)' : '';
  return `zero_optimization: ${wayText(best)}${why}: ${texts.join(', ')}${each}${mayGrow}${batch}${time}`;
}

interface MemoryNeed {
  of: string;
  tier: 'device' | 'host' | 'disk';
  parts: Parts;
  bytes: number;
  there: number;
}

/** Returns the need of a choice in each limited memory. */
function needsOf(
  way: CandidateMemory<ResolvedConfig>,
  { room, isHost, deviceName }: Context,
): MemoryNeed[] {
  const { memory, device, host, disk } = way;
  const ofDevice = { ...memory.device, margin: device - total(memory.device) };
  const ofHost = { ...memory.host, margin: host - total(memory.host) };
  const needs: MemoryNeed[] = [];
  if (room.device !== null) {
    const of = `the memory of ${deviceName}`;
    needs.push({ of, tier: 'device', parts: ofDevice, bytes: device, there: room.device });
  }
  const parts = isHost ? addParts([ofDevice, ofHost]) : ofHost;
  const bytes = isHost ? device + host : host;
  needs.push({ of: 'host memory', tier: 'host', parts, bytes, there: room.host });
  if (disk > 0) {
    needs.push({
      of: 'disk',
      tier: 'disk',
      parts: { optimizer: disk },
      bytes: disk,
      there: room.disk,
    });
  }
  return needs;
}

const FEWER_ACTIVATIONS =
  'Reduce train_micro_batch_size_per_gpu or training.sequenceLength, or set activationCheckpointing: true in the model.';

/** Returns the error: the shortage of the choice that needs the least memory. */
export function nothingFits(leanest: CandidateMemory<ResolvedConfig>, context: Context): DsError {
  const { room, ranks, isKnown } = context;
  const all = needsOf(leanest, { ...context, room: { ...room, host: room.hostAtMost } });
  const short = all.filter(({ bytes, there }) => bytes > there);
  const hints = [
    ...(isKnown && short.some(({ parts }) => (parts.activations ?? 0) > 0)
      ? [FEWER_ACTIVATIONS]
      : []),
    ...short.flatMap(({ tier }) => settings(tier, leanest.config)),
  ];
  const each = ranks > 1 ? ' for each rank' : '';
  return new DsError({
    code: 'DS_OUT_OF_MEMORY',
    op: 'initialize',
    expected: `${short.map(({ of, parts }) => needsText(of, parts)).join(', ')}${each} by the plan, with ${wayText(leanest)}, the smallest choice of "auto"`,
    got: short.map(({ there }) => byteText(there)).join(', '),
    hint: [...new Set(hints)].join(' '),
  });
}
