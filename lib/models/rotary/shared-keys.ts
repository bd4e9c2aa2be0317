// Keys and values that later layers read, outside of caches: between segments that are recomputed,
// and between pipeline stages.
import type { PipelineLayer, Values } from '../../pipe/index.js';
import { required } from '../../runtime/required.js';
import { checkpoint, segmentsOf, Tensor } from '../../tensor/index.js';
import type { AttentionContext, Heads } from './attention.js';
import type { Body } from './config.js';
import { sourceOf } from './layer-kinds.js';

/** Keys and values that later layers read, by layer. */
export type Shared = Map<number, Pick<Heads, 'k' | 'v'>>;

/** Keys and values of `layers`, from a list of both in turn. */
const sharedFrom = (layers: readonly number[], flat: readonly Tensor[]): Shared =>
  new Map(
    layers.map((layer, i) => [layer, { k: required(flat[2 * i]), v: required(flat[2 * i + 1]) }]),
  );

/** The list. */
const flatOf = (shared: Shared, layers: readonly number[]): Tensor[] =>
  layers.flatMap((layer) => {
    const { k, v } = required(shared.get(layer));
    return [k, v];
  });

/** The layers before `layer` with keys and values that it or a later one reads. */
function sourcesBefore(body: Body, layer: number): number[] {
  const readers = body.isFull.map((_, other) => other).filter((other) => other >= layer);
  const sources = new Set(readers.map((other) => sourceOf(body, other)));
  return [...sources].filter((source) => source !== null && source < layer) as number[];
}

/** A block on a stream [B, T, C]; it reads and adds to `context.shared`. */
export type KindBlock = (
  stream: Tensor,
  given: Pick<AttentionContext, 'shared' | 'layerInputs'> & {
    documents: Tensor | null;
    positions: Tensor | null;
  },
) => Tensor;

/** Tensors that all blocks of one forward read. */
interface BlockInputs {
  documents: Tensor | null;
  positions: Tensor | null;
  layerInputs: Tensor | null;
}

/** Runs blocks with recomputed segments. A segment also returns the keys that later blocks read. */
export function checkpointedKinds(
  body: Body,
  blocks: readonly KindBlock[],
  x: Tensor,
  { documents, positions, layerInputs }: BlockInputs,
): Tensor {
  const shared: Shared = new Map();
  let stream = x;
  let first = 0;
  for (const part of segmentsOf(blocks, body.numberCheckpoints ?? null)) {
    const known = sourcesBefore(body, first);
    first += part.length;
    const made = sourcesBefore(body, first).filter((value) => !known.includes(value));
    const through = (input: Tensor, ...given: readonly (Tensor | null)[]): Tensor[] => {
      const [documents = null, positions = null, layerInputs = null, ...flat] = given;
      const own = sharedFrom(known, flat as Tensor[]);
      const all = { documents, positions, layerInputs, shared: own };
      return [part.reduce((from, block) => block(from, all), input), ...flatOf(own, made)];
    };
    const inputs = [documents, positions, layerInputs, ...flatOf(shared, known)];
    const [next, ...keys] = checkpoint(through, stream, ...inputs);
    for (const [layer, item] of sharedFrom(made, keys)) shared.set(layer, item);
    if (stream !== x) stream.dispose();
    stream = required(next);
  }
  for (const tensor of flatOf(shared, [...shared.keys()])) tensor.dispose();
  return stream;
}

const listOf = (values: Values): readonly Tensor[] =>
  values instanceof Tensor ? [values] : values;

/**
 * The layers between the embedding and the last norm of a pipeline. They pass the stream, the
 * further embeddings if there are any, and keys and values that later layers read.
 */
export function kindLayers(
  body: Body,
  blocks: readonly (readonly [PipelineLayer['modules'], KindBlock])[],
  keepsInputsOnly: boolean,
): PipelineLayer[] {
  const hasInputs = body.layerInputDim != null;
  return blocks.map(([modules, block], layer) => {
    const known = sourcesBefore(body, layer);
    const passed = sourcesBefore(body, layer + 1);
    const through = (x: Tensor, ...more: readonly (Tensor | null)[]): Tensor[] => {
      const [layerInputs, flat] = hasInputs ? [more[0] ?? null, more.slice(1)] : [null, more];
      const shared = sharedFrom(known, flat as Tensor[]);
      const out = block(x, { shared, layerInputs, documents: null, positions: null });
      const goesOn = layerInputs && layer + 1 < blocks.length ? [layerInputs] : [];
      return [out, ...goesOn, ...flatOf(shared, passed)];
    };
    return {
      modules,
      forward(values) {
        const [x, ...more] = listOf(values);
        if (keepsInputsOnly) return checkpoint(through, required(x), ...more);
        return through(required(x), ...more);
      },
    };
  });
}

/** Keeps the keys and values of a layer beyond the present scope. */
export function keepShared(shared: Shared | undefined, layer: number): void {
  const made = shared?.get(layer);
  made?.k.keep();
  made?.v.keep();
}

/** Frees all keys and values. */
export function releaseShared(shared: Shared | undefined): void {
  for (const { k, v } of shared?.values() ?? []) {
    k.dispose();
    v.dispose();
  }
}
