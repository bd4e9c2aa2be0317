// Passes keys and values that later layers read between recomputed segments and between pipeline
// stages.
import type { PipelineLayer, Values } from '../../pipe/index.js';
import { required } from '../../runtime/required.js';
import { checkpoint, segmentsOf, Tensor } from '../../tensor/index.js';
import type { AttentionContext, ProjectedHeads } from './attention.js';
import type { BodySizes } from './config.js';
import { findSource } from './layer-kinds.js';

/** Keys and values that later layers read, by layer. */
export type SharedKeyValues = Map<number, Pick<ProjectedHeads, 'k' | 'v'>>;

/** Returns the keys and values of `layers` from a list that alternates both. */
const unflattenShared = (layers: readonly number[], flat: readonly Tensor[]): SharedKeyValues =>
  new Map(
    layers.map((layer, i) => [layer, { k: required(flat[2 * i]), v: required(flat[2 * i + 1]) }]),
  );

/** Returns the list of keys and values. */
const flattenShared = (shared: SharedKeyValues, layers: readonly number[]): Tensor[] =>
  layers.flatMap((layer) => {
    const { k, v } = required(shared.get(layer));
    return [k, v];
  });

/** Returns the layers before `layer` whose keys and values it or a later layer reads. */
function listSources(body: BodySizes, layer: number): number[] {
  const readers = body.isFull.map((_, other) => other).filter((other) => other >= layer);
  const sources = new Set(readers.map((other) => findSource(body, other)));
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
export function runCheckpointedBlocks(
  body: BodySizes,
  blocks: readonly KindBlock[],
  x: Tensor,
  { documents, positions, layerInputs }: BlockInputs,
): Tensor {
  const shared: SharedKeyValues = new Map();
  let stream = x;
  let first = 0;
  for (const part of segmentsOf(blocks, body.numberCheckpoints ?? null)) {
    const sourcesIn = listSources(body, first);
    first += part.length;
    const sourcesOut = listSources(body, first).filter((value) => !sourcesIn.includes(value));
    const through = (input: Tensor, ...given: readonly (Tensor | null)[]): Tensor[] => {
      const [documents = null, positions = null, layerInputs = null, ...flat] = given;
      const sharedInputs = unflattenShared(sourcesIn, flat as Tensor[]);
      const all = { documents, positions, layerInputs, shared: sharedInputs };
      return [
        part.reduce((from, block) => block(from, all), input),
        ...flattenShared(sharedInputs, sourcesOut),
      ];
    };
    const inputs = [documents, positions, layerInputs, ...flattenShared(shared, sourcesIn)];
    const [next, ...keys] = checkpoint(through, stream, ...inputs);
    for (const [layer, item] of unflattenShared(sourcesOut, keys)) shared.set(layer, item);
    if (stream !== x) stream.dispose();
    stream = required(next);
  }
  for (const tensor of flattenShared(shared, [...shared.keys()])) tensor.dispose();
  return stream;
}

const listOf = (values: Values): readonly Tensor[] =>
  values instanceof Tensor ? [values] : values;

/**
 * Returns the pipeline layers between the embedding and the last norm. They pass on the stream, the
 * further embeddings if there are any, and keys and values that later layers read.
 */
export function createKindLayers(
  body: BodySizes,
  blocks: readonly (readonly [PipelineLayer['modules'], KindBlock])[],
  keepsInputsOnly: boolean,
): PipelineLayer[] {
  const hasInputs = body.layerInputDim != null;
  return blocks.map(([modules, block], layer) => {
    const sources = listSources(body, layer);
    const passed = listSources(body, layer + 1);
    const through = (x: Tensor, ...more: readonly (Tensor | null)[]): Tensor[] => {
      const [layerInputs, flat] = hasInputs ? [more[0] ?? null, more.slice(1)] : [null, more];
      const shared = unflattenShared(sources, flat as Tensor[]);
      const out = block(x, { shared, layerInputs, documents: null, positions: null });
      const goesOn = layerInputs && layer + 1 < blocks.length ? [layerInputs] : [];
      return [out, ...goesOn, ...flattenShared(shared, passed)];
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

/** Keeps the keys and values of a layer beyond the current scope. */
export function keepShared(shared: SharedKeyValues | undefined, layer: number): void {
  const keyValues = shared?.get(layer);
  keyValues?.k.keep();
  keyValues?.v.keep();
}

/** Frees all keys and values. */
export function releaseShared(shared: SharedKeyValues | undefined): void {
  for (const { k, v } of shared?.values() ?? []) {
    k.dispose();
    v.dispose();
  }
}
