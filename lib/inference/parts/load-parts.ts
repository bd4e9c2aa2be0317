// A model begins with the tensors of the files that a checkpoint for inference lists.
import { WeightFiles } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { type CausalLM, layoutOf } from '../../models/index.js';
import { OpenWeights, StoredWeights } from '../../models/stored-weights.js';
import type { Parameter } from '../../nn/parameter.js';
import type { StoredValues } from '../../nn/stored-values.js';
import type { Box } from '../../runtime/box.js';
import { type DType, isFloating } from '../../runtime/dtype.js';
import { numel } from '../../runtime/view.js';
import type { Tensor } from '../../tensor/index.js';
import { damaged, type PartsList } from './parts-list.js';

/** Who reads, and as what. */
export interface PartsReader {
  /** Of those that share the model. */
  rank: number;
  ranks: number;
  /** Of the parameters; null: what the files have. */
  dtype: DType | null;
}

/**
 * Lets all parameters of `model`, which is cut already and whose values nobody has used, start with
 * what the files have: whole tensors are read part by part, parts as they are. Values stay in the
 * files until somebody needs them. Rejects with DS_CHECKPOINT where a tensor is missing, has
 * another shape or the parts are those of another number of ranks; DS_ARGUMENT for a model with
 * values, DS_IO.
 */
export async function loadParts(
  model: CausalLM,
  list: PartsList,
  { rank, ranks, dtype }: PartsReader,
): Promise<void> {
  const { place, whole, parts } = list;
  const used = [...model.namedParameters()].find(([, one]) => one.isMaterialized);
  if (used) throw begun(used[0]);
  if (parts && Math.max(1, parts.length) !== ranks) {
    const hint = `Start with tensor_parallel.tp_size ${Math.max(1, parts.length)}, or list whole tensors.`;
    throw damaged(
      place,
      `the parts of ${ranks} ranks`,
      `those of ${Math.max(1, parts.length)}`,
      hint,
    );
  }
  const left = new Map(model.namedParameters());
  const named = parts ? null : layoutOf(model);
  const begin = async (path: string, isPart: boolean): Promise<void> => {
    const files = await WeightFiles.open(path);
    const open = new OpenWeights(files).retain();
    try {
      for (const [name, entry] of files.tensors) {
        const own = named ? named.nameOf(name) : name;
        const parameter = own === null ? undefined : left.get(own);
        if (own === null || !parameter) continue;
        const transposed = named?.transposed.has(own) === true;
        const expected = isPart ? parameter.shape : parameter.region.whole;
        const shape = transposed ? [...expected].reverse() : expected;
        if (entry.shape.join() !== shape.join()) {
          throw damaged(`${path}: ${name}`, `[${shape.join(', ')}]`, `[${entry.shape.join(', ')}]`);
        }
        const wanted = isFloating(entry.dtype) ? (dtype ?? entry.dtype) : entry.dtype;
        const stored = new StoredWeights(open, { name, dtype: wanted, transposed });
        parameter.startFrom(isPart && parameter.isCut ? new OwnPart(stored, parameter) : stored);
        left.delete(own);
      }
    } finally {
      open.release();
    }
  };
  for (const path of whole) await begin(path, false);
  const own = parts?.[rank];
  if (own) await begin(own, true);
  const [missing] = left.keys();
  if (missing === undefined) return;
  throw damaged(place, 'all parameters of the model', `none for ${left.size}, such as ${missing}`);
}

/** A file's tensor that is the part of a parameter which this rank has. */
class OwnPart implements StoredValues {
  readonly dtype: DType;
  readonly origin: string;

  constructor(
    private readonly stored: StoredValues,
    private readonly parameter: Parameter,
  ) {
    this.dtype = stored.dtype;
    this.origin = stored.origin;
  }

  /** The boxes of the part lie one after another. */
  read(out: Tensor, from: number, box?: Box): void {
    const { boxes } = this.parameter.region;
    const at = box ? boxes.findIndex((one) => one.offset.join() === box.offset.join()) : 0;
    const before = boxes.slice(0, at).reduce((sum, { shape }) => sum + numel(shape), 0);
    this.stored.read(out, before + from);
  }

  done(): void {
    this.stored.done();
  }
}

function begun(name: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'initInference checkpoint',
    expected: 'a model whose values nobody has used yet',
    got: `one whose ${name} has some`,
    hint: 'Make it by nn.models.fromConfig(), or give initInference() the folder of its config.json.',
  });
}
