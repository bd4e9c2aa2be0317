// Explains an out-of-memory error: lists the owners of memory, and the settings that free the most.
import type { ResolvedConfig } from '../../../types/config.js';
import { byteText } from '../../runtime/byte-text.js';
import type { Explanation } from '../../runtime/shortage.js';
import type { Partition } from '../../zero/partition.js';
import { StreamedState } from '../../zero/state/placement/streamed.js';
import type { Ranks } from '../ranks.js';
import { type MemoryOwners, type MemoryUse, measureMemory } from './memory-breakdown.js';

interface Advised extends MemoryOwners {
  config: ResolvedConfig;
  ranks: Pick<Ranks, 'dataGroup'>;
}

interface Setting {
  /** Approximate bytes that the setting frees. */
  frees: number;
  text: string;
}

const SHOWN_SETTINGS = 3;
/**
 * Estimated fraction of activations that remains with checkpointed blocks. It only orders the
 * settings.
 */
const CHECKPOINTED = 1 / 3;

/** Returns the bytes by owner, the limit, and the three settings that free the most. */
export function adviseOnMemory(advised: Advised): Explanation {
  const use = measureMemory(advised);
  const { device } = advised;
  const { weights, gradients, optimizer, other } = use.device;
  const { cap, total } = device.memory;
  const limit = cap > 0 ? `the cap ${byteText(cap)}` : `the ${byteText(total)} of ${device.name}`;
  const owners = [
    `weights ${byteText(weights)}`,
    `gradients ${byteText(gradients)}`,
    `master weights and optimizer ${byteText(optimizer)}`,
    `activations and other ${byteText(other)}`,
  ].join(', ');
  const best = findSettings(advised, use.device)
    .filter(({ frees }) => frees > 0)
    .sort((a, b) => b.frees - a.frees)
    .slice(0, SHOWN_SETTINGS)
    .map(({ text }, i) => `(${i + 1}) ${text}`);
  const hint = best.length > 0 ? `Most effective settings: ${best.join('; ')}.` : '';
  return { held: `${owners}, under ${limit}`, hint };
}

function findSettings(advised: Advised, use: MemoryUse['device']): Setting[] {
  return [
    ...stateSettings(advised, use),
    ...activationSettings(advised, use),
    ...limitSettings(advised),
  ];
}

/** Returns the bytes of gradients that wait for their update in the memory of backward. */
function waitingGradients(partitions: readonly Partition[]): number {
  return partitions.reduce(
    (sum, { grad, bytes, unit }) => sum + (grad ? bytes.gradients + unit.gradient.bytes : 0),
    0,
  );
}

/** Returns the bytes of offloaded weights that are on the device. */
function offloadedOnDevice(partitions: readonly Partition[]): number {
  return partitions.reduce((sum, { storage }) => sum + storage.bytes.device, 0);
}

/**
 * Returns settings that move weights, gradients or optimizer state to the host, or to other ranks.
 */
function stateSettings(
  { config, device, state, ranks: { dataGroup } }: Advised,
  { weights, gradients, optimizer }: MemoryUse['device'],
): Setting[] {
  const { stage, offload_optimizer: offload, offload_param: params } = config.zero_optimization;
  const found: Setting[] = [];
  const streamed = state.updateGroups.filter(
    ({ state: { placement } }) => placement instanceof StreamedState,
  );
  if (streamed.length > 0) {
    const frees = streamed.reduce((sum, { state: ownState, schedule, partitions }) => {
      const weights = params.device === 'none' ? 0 : offloadedOnDevice(partitions);
      const waiting = waitingGradients(partitions);
      return sum + ownState.bytes.device + (schedule.bytes?.device ?? 0) + waiting + weights;
    }, 0);
    const text = `"zero_optimization.offload_optimizer.gpu_share": 0 frees ${byteText(frees)}`;
    found.push({ frees, text });
  }
  if (device.kind !== 'cpu' && offload.device === 'none') {
    const also = stage === 0 ? '"stage": 1, ' : '';
    const text = `"zero_optimization": { ${also}"offload_optimizer": { "device": "cpu" } } moves ${byteText(optimizer)} to host memory`;
    found.push({ frees: optimizer, text });
  }
  if (device.kind !== 'cpu' && stage === 3 && params.device === 'none') {
    const text = `"zero_optimization.offload_param": { "device": "cpu" } moves ${byteText(weights)} to host memory`;
    found.push({ frees: weights, text });
  }
  if (stage < 3) {
    const next = stage < 2 ? 2 : 3;
    const shared = (stage < 1 ? optimizer : 0) + (stage < 2 ? gradients : weights);
    const frees = shared * (1 - 1 / dataGroup.size);
    found.push({
      frees,
      text: `"zero_optimization.stage": ${next} frees about ${byteText(frees)}`,
    });
  }
  return found;
}

function activationSettings({ config }: Advised, { other }: MemoryUse['device']): Setting[] {
  const micro = config.train_micro_batch_size_per_gpu;
  const steps = config.gradient_accumulation_steps;
  const left = Math.max(1, Math.floor(micro / 2));
  const smaller = other * (1 - left / micro);
  const recomputed = other * (1 - CHECKPOINTED);
  const found: Setting[] = [
    {
      frees: smaller,
      text:
        `"train_micro_batch_size_per_gpu": ${left} with "gradient_accumulation_steps": ` +
        `${Math.ceil((steps * micro) / left)} frees about ${byteText(smaller)}`,
    },
    {
      frees: recomputed,
      text: `checkpoint() around each block of the model frees up to ${byteText(recomputed)} of activations`,
    },
  ];
  if (!config.bf16.enabled && !config.fp16.enabled) {
    const text = `"bf16": { "enabled": true } halves activations, by about ${byteText(other / 2)}`;
    found.push({ frees: other / 2, text });
  }
  return found;
}

function limitSettings({ device }: Advised): Setting[] {
  const { cap, total } = device.memory;
  if (cap === 0) return [];
  const text = `a higher cap: device.setMemoryCap() allows ${byteText(cap)} of ${byteText(total)}`;
  return [{ frees: total - cap, text }];
}
