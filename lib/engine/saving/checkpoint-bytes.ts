// The size of a checkpoint before it is saved.
import type { TensorInfo } from '../../checkpoint/index.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { numel } from '../../runtime/view.js';
import type { EngineCore } from '../engine-parts.js';
import { catalogOf } from './engine-shards.js';

/**
 * Bytes of the tensors of one checkpoint on all ranks that have a part of the same model, without
 * headers. Reads shapes only.
 */
export function checkpointBytes(engine: EngineCore, weightsOnly: boolean): number {
  const { model, optimizer } = catalogOf(engine, () => true);
  const saved = weightsOnly ? [...model.values()] : [...model.values(), ...optimizer.values()];
  return saved.reduce((sum, info) => sum + bytesOf(info), 0);
}

const bytesOf = ({ dtype, shape }: TensorInfo): number => numel(shape) * dtypeSize(dtype);
