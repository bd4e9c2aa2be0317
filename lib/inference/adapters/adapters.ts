// The adapters of an inference engine: names, slots on the device, and the rows of a step.

import { DsError } from '../../errors.js';
import type { CausalLM } from '../../models/index.js';
import { joinAll, joinMemory, type ProductAddition } from '../../nn/joined-linears.js';
import type { Module } from '../../nn/module.js';
import { HEADS } from '../../nn/pack-linears.js';
import { replaceModules } from '../../nn/replace-modules.js';
import { AdapterReader } from '../../peft/adapter-reader.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import { contiguousStrides } from '../../runtime/view.js';
import { cast, linear, noGrad, scope, Tensor } from '../../tensor/index.js';
import {
  type AdaptableLinear,
  AdaptedLinear,
  isAdaptable,
  type LayerSlots,
  layerShape,
  sliceFactors,
  viewWithFactors,
  zeros,
} from './adapted-linear.js';
import { buildLists, WIDE_ROWS } from './rows.js';
import { type AdapterSettings, MAX_RANK } from './settings.js';

/** Lists of a step on the device, inputs of the ops AdapterShrink and AdapterExpand. */
interface AdapterLists {
  /** Rows sorted by adapter, [entries] i32. */
  readonly entries: Tensor;
  /** [tiles, 3] i32. */
  readonly tiles: Tensor;
}

/** A loaded adapter. */
interface LoadedAdapter {
  readonly slot: number;
  /** Part of the prefix cache's salt; each load gets a new number. */
  readonly version: number;
  /** Number of sequences in progress. */
  users: number;
  /** unload() was called; the last user frees the slot. */
  isLeaving: boolean;
}

/** Keeps an adapter loaded while a request uses it. */
export interface AdapterUse {
  readonly slot: number;
  readonly version: number;
  /** Ends the use by one sequence. */
  release(): void;
}

/** Ranks are rounded up to the tile size of tensor cores. */
const RANK_STEP = 16;
/** Maximum number of layers in one launch. */
const LAYERS_PER_LAUNCH = 3;
/**
 * Maximum number of rows of A (slots x rank) after a weight. Each product computes all of them,
 * also for free slots.
 */
const MAX_EXTRA_ROWS = 1024;

/** Owns the adapters of a model: for each layer, one allocation that holds all slots. */
export class Adapters implements ProductAddition {
  private readonly loaded = new Map<string, LoadedAdapter>();
  private readonly free: number[];
  private readonly layers = new Map<string, AdaptedLinear>();
  private readonly max: number;
  private versions = 0;
  private lists: AdapterLists | null = null;
  /** First layer of the last joint product in the running forward; null before. */
  private last: AdaptedLinear | null = null;
  /**
   * For each first layer of a product, the layers of the next product, as an earlier forward ran
   * them. The op AdapterSum prefetches their weight.
   */
  private readonly following = new Map<AdaptedLinear, readonly AdaptedLinear[]>();

  private constructor(
    private readonly model: CausalLM,
    private readonly settings: AdapterSettings,
    paths: readonly string[],
  ) {
    const { device, dtype } = model.cacheShape();
    this.free = Array.from({ length: settings.count }, (_, i) => settings.count - 1 - i);
    this.max = Math.ceil(settings.rank / RANK_STEP) * RANK_STEP;
    const modules = new Map(model.namedModules());
    const instead = new Map<Module, Module>();
    const running = (): ProductAddition | null => (this.lists ? this : null);
    try {
      for (const path of paths) {
        const base = required(modules.get(path)) as AdaptableLinear;
        const layer = new AdaptedLinear(base, this.allocateSlots(base, { device, dtype }), running);
        this.layers.set(path, layer);
        instead.set(base, layer);
      }
    } catch (error) {
      this.freeSlots();
      throw error;
    }
    replaceModules(model, instead);
    try {
      this.placeFactors();
    } catch (error) {
      this.dispose();
      throw error;
    }
  }

  /**
   * Joins the weights of layers with one input. Places A after the weights if one product can
   * compute both.
   */
  private placeFactors(): void {
    joinAll(this.model);
    for (const layer of this.layers.values()) {
      if (layer.extraRows) joinMemory([layer]);
      const { slots } = layer;
      const [count, , most] = leading(slots.b.shape, 3);
      slots.a ??= zeros([count, most, layerShape(layer.base).inputs], slots.b);
    }
  }

  /**
   * Prepares a model and loads the adapters of the settings. All ranks that share a model must call
   * it. Rejects with DS_ARGUMENT for a rank above the limit, DS_CHECKPOINT for an adapter of
   * another model, DS_OUT_OF_MEMORY, and with the errors of AdapterReader.open().
   */
  static async install(op: string, model: CausalLM, requested: AdapterSettings): Promise<Adapters> {
    const readers = new Map<string, AdapterReader>();
    try {
      for (const [name, source] of requested.folders) {
        readers.set(name, await AdapterReader.open(`${op} adapters.${name}`, source));
      }
      const largest = Math.max(0, ...Array.from(readers.values(), ({ rank }) => rank));
      const minRank = Math.max(largest, requested.isOpen ? RANK_STEP : 1);
      const rank = requested.rank > 0 ? requested.rank : minRank;
      const settings = { ...requested, rank: Math.min(rank, MAX_RANK) };
      const all = findAdaptable(model);
      for (const [name, reader] of readers) {
        requireFitting(`${op} adapters.${name}`, reader, all, settings.rank);
      }
      const layerNames = new Set([...readers.values()].flatMap(({ layers }) => [...layers.keys()]));
      const paths = [...all.keys()].filter((path) => layerNames.has(path) || requested.isOpen);
      const adapters = new Adapters(model, settings, paths);
      try {
        for (const [name, reader] of readers) await adapters.fill(name, reader);
      } catch (error) {
        adapters.dispose();
        throw error;
      }
      return adapters;
    } finally {
      for (const reader of readers.values()) await reader.close();
    }
  }

  /** Names of the loaded adapters, in the order of loading. */
  get names(): readonly string[] {
    return [...this.loaded.keys()];
  }

  /** Number of slots, used and free. */
  get count(): number {
    return this.settings.count;
  }

  /** Throws DS_ARGUMENT unless an adapter has this name. */
  require(op: string, name: string): void {
    if (this.loaded.has(name)) return;
    const list = this.names.map((name) => JSON.stringify(name)).join(', ') || 'none is loaded';
    throw argumentError(op, `the name of a loaded adapter (${list})`, formatValue(name));
  }

  /** Keeps an adapter loaded for `sequences` sequences. Throws DS_ARGUMENT for an unknown name. */
  use(op: string, name: string, sequences: number): AdapterUse {
    this.require(op, name);
    const loaded = required(this.loaded.get(name));
    loaded.users += sequences;
    const release = (): void => {
      loaded.users--;
      if (loaded.isLeaving && loaded.users === 0) this.free.push(loaded.slot);
    };
    return { slot: loaded.slot, version: loaded.version, release };
  }

  /**
   * Loads an adapter into a free slot. Rejects with DS_ARGUMENT if the name is in use or the rank
   * too large, with DS_LIMIT if no slot is free, and as install() does.
   */
  async load(op: string, name: string, source: string): Promise<void> {
    this.requireNew(op, name);
    const reader = await AdapterReader.open(op, source);
    try {
      const all = new Map(Array.from(this.layers, ([path, { base }]) => [path, base]));
      requireFitting(op, reader, all, this.settings.rank);
      await this.fill(name, reader, op);
    } finally {
      await reader.close();
    }
  }

  /**
   * Unloads an adapter. Running requests keep it, new requests cannot use it. Throws DS_ARGUMENT
   * for an unknown name.
   */
  unload(op: string, name: string): void {
    this.require(op, name);
    const loaded = required(this.loaded.get(name));
    this.loaded.delete(name);
    loaded.isLeaving = true;
    if (loaded.users === 0) this.free.push(loaded.slot);
  }

  /** Calls `body`, a forward with these rows of adapters; null for a forward without adapters. */
  run<T>(lists: AdapterLists | null, body: () => T): T {
    this.lists = lists;
    this.last = null;
    try {
      return body();
    } finally {
      this.lists = null;
    }
  }

  /**
   * Calls `body`, a forward of `rows` rows with one adapter. Throws DS_ARGUMENT if it is unknown.
   */
  with<T>(name: string, rows: number, body: () => T): T {
    this.require('InferenceEngine adapter', name);
    const { slot } = required(this.loaded.get(name));
    const numbers = buildLists(Array.from({ length: rows }, () => slot));
    const { device } = this.model.cacheShape();
    return scope(() => {
      const entries = Tensor.from(Int32Array.from(numbers.entries), { device });
      const shape = [numbers.tiles.length / 3, 3];
      const tiles = Tensor.from(Int32Array.from(numbers.tiles), { shape, device });
      return this.run({ entries, tiles }, body);
    });
  }

  /** See ProductAddition. */
  add(x: Tensor, layers: readonly Module[], outs: readonly Tensor[]): void {
    const { entries, tiles } = required(this.lists);
    const pairs = layers.flatMap((layer, i) =>
      layer instanceof AdaptedLinear ? [{ ...layer.slots, out: required(outs[i]) }] : [],
    );
    scope(() => {
      const rows = x.reshape([-1, x.size(-1)]).contiguous();
      for (let at = 0; at < pairs.length; at += LAYERS_PER_LAUNCH) {
        const [leading, second = null, third = null] = pairs.slice(at, at + LAYERS_PER_LAUNCH);
        const first = required(leading);
        const count = Math.min(LAYERS_PER_LAUNCH, pairs.length - at);
        const h = Tensor.empty([count, entries.size(0), this.max], x.dtype, x.device);
        kernels.adapterShrink({
          x: rows,
          rows: entries,
          tiles,
          a: required(first.a),
          ranks: first.ranks,
          a2: second?.a ?? null,
          ranks2: second?.ranks ?? null,
          a3: third?.a ?? null,
          ranks3: third?.ranks ?? null,
          h,
        });
        kernels.adapterExpand({
          h,
          rows: entries,
          tiles,
          b: first.b,
          ranks: first.ranks,
          out: first.out,
          b2: second?.b ?? null,
          ranks2: second?.ranks ?? null,
          out2: second?.out ?? null,
          b3: third?.b ?? null,
          ranks3: third?.ranks ?? null,
          out3: third?.out ?? null,
        });
      }
    });
  }

  /** See ProductAddition. */
  product(x: Tensor, layers: readonly Module[], isGated: boolean): Tensor | null {
    const { entries, tiles } = required(this.lists);
    const inputs = x.size(-1);
    const rows = x.numel / inputs;
    // Up to WIDE_ROWS rows, the lists include rows without an adapter, so they cover all rows.
    if (
      rows > WIDE_ROWS ||
      rows !== entries.size(0) ||
      layers.length > LAYERS_PER_LAUNCH ||
      (isGated && layers.length !== 2)
    )
      return null;
    // The product also reads A of unused slots: with few in use, two more kernels cost less.
    if (tiles.size(0) < this.count / 2) return null;
    const adapted = layers.filter((layer) => layer instanceof AdaptedLinear);
    const factors = adapted.length === layers.length ? viewWithFactors(adapted) : null;
    if (!factors) return null;
    const [leading, second = null, third = null] = adapted.map(({ slots }) => slots);
    const first = required(leading);
    const outputs = adapted.reduce((sum, { slots }) => sum + slots.b.size(1), 0);
    const outer = x.shape.slice(0, -1);
    return scope(() => {
      const wide = linear(x.reshape([rows, inputs]), ...factors);
      const isInPlace = adapted.length > 1 && !isGated;
      const width = isGated ? outputs / 2 : outputs;
      const next = this.nextWeight(adapted);
      const out = isInPlace
        ? wide.alias([rows, width], [wide.size(1), 1])
        : Tensor.empty([rows, width], x.dtype, x.device);
      kernels.adapterSum({
        wide,
        rows: entries,
        tiles,
        b: first.b,
        ranks: first.ranks,
        b2: second?.b ?? null,
        ranks2: second?.ranks ?? null,
        b3: third?.b ?? null,
        ranks3: third?.ranks ?? null,
        // Several layers (q, k, v) precede attention. Its cache writes need the L2 cache, so no
        // prefetch.
        next: isInPlace ? null : next,
        out,
        gated: isGated,
      });
      const strides = contiguousStrides([...outer, isInPlace ? wide.size(1) : width]);
      return out.alias([...outer, width], strides);
    });
  }

  /**
   * Returns the weight of the product after `layers`, for the prefetch; null in the first forward.
   */
  private nextWeight(layers: readonly AdaptedLinear[]): Tensor | null {
    const first = required(layers[0]);
    if (this.last) this.following.set(this.last, layers);
    this.last = first;
    const next = this.following.get(first);
    return (next && viewWithFactors(next)?.[0]) ?? null;
  }

  /** Restores the layers of the model and frees all adapters. */
  dispose(): void {
    replaceModules(
      this.model,
      new Map(Array.from(this.layers.values(), (layer) => [layer, layer.base])),
    );
    this.freeSlots();
    this.loaded.clear();
  }

  private freeSlots(): void {
    for (const { slots } of this.layers.values()) {
      for (const tensor of [slots.a, slots.noBias, slots.b, slots.ranks]) tensor?.dispose();
    }
    this.layers.clear();
  }

  /** Allocates B and the ranks of a layer. placeFactors() places A later. */
  private allocateSlots(
    base: AdaptableLinear,
    { device, dtype }: { device: Device; dtype: DType },
  ): LayerSlots {
    const { inputs, outputs } = layerShape(base);
    const { max } = this;
    const { count } = this.settings;
    const extraRows = count * max <= MAX_EXTRA_ROWS ? [count, max, inputs] : null;
    const b = zeros([count, outputs, max], { dtype, device });
    try {
      return {
        a: null,
        noBias: null,
        extraRows,
        b,
        ranks: zeros([count], { dtype: 'i32', device }),
      };
    } catch (error) {
      b.dispose();
      throw error;
    }
  }

  private requireNew(op: string, name: string): void {
    if (this.loaded.has(name))
      throw argumentError(op, 'a name that no adapter has', formatValue(name));
    if (this.free.length > 0) return;
    throw new DsError({
      code: 'DS_LIMIT',
      op,
      expected: `at most ${this.settings.count} adapters`,
      got: 'one more adapter',
      hint: 'Unload an adapter, or raise maxAdapters (--max-loras).',
    });
  }

  /** Writes the factors of an adapter to a free slot. */
  private async fill(name: string, reader: AdapterReader, op = 'initInference'): Promise<void> {
    this.requireNew(op, name);
    const slot = required(this.free.pop());
    try {
      for (const [path, layer] of this.layers) await this.fillLayer(slot, reader, path, layer);
      await reader.requireUnchanged();
      if (this.loaded.has(name)) this.requireNew(op, name);
    } catch (error) {
      this.free.push(slot);
      throw error;
    }
    this.loaded.set(name, { slot, version: ++this.versions, users: 0, isLeaving: false });
  }

  private async fillLayer(
    slot: number,
    reader: AdapterReader,
    path: string,
    { base, slots }: AdaptedLinear,
  ): Promise<void> {
    const factors = reader.layers.get(path);
    const values = factors ? await reader.read(factors) : [];
    const rank = factors?.rank ?? 0;
    try {
      noGrad(() =>
        scope(() => {
          const row = (list: Tensor): Tensor => list.narrow(0, slot, 1).squeeze(0);
          const targets = { a: required(slots.a), b: slots.b };
          // A joint product reads all rows of A and B, so rows above the adapter's rank must be 0.
          for (const list of [targets.a, targets.b]) kernels.fill({ out: row(list), value: 0 });
          const [a, b] = values;
          if (a && b) {
            const [first, second] = sliceFactors(base, a, b);
            const onDevice = first.to(slots.b.device);
            kernels.copy({
              in: cast(onDevice, slots.b.dtype),
              out: row(targets.a).narrow(0, 0, rank),
            });
            const wide = cast(second.to(slots.b.device), 'f32').mul(factors?.scaling ?? 1);
            kernels.copy({ in: cast(wide, slots.b.dtype), out: row(slots.b).narrow(1, 0, rank) });
          }
          kernels.fill({ out: slots.ranks.narrow(0, slot, 1), value: rank });
        }),
      );
    } finally {
      for (const tensor of values) tensor.release();
    }
  }
}

/** Returns the layers that may have adapters, by path: all linear layers except the head. */
function findAdaptable(model: CausalLM): Map<string, AdaptableLinear> {
  const layers = new Map<string, AdaptableLinear>();
  for (const [path, module] of model.namedModules()) {
    const last = path.slice(path.lastIndexOf('.') + 1);
    if (isAdaptable(module) && !HEADS.includes(last)) layers.set(path, module);
  }
  return layers;
}

/** Throws DS_ARGUMENT for a rank above `max`, and DS_CHECKPOINT for layers that the model lacks. */
function requireFitting(
  op: string,
  { path, layers, rank }: AdapterReader,
  all: ReadonlyMap<string, AdaptableLinear>,
  max: number,
): void {
  if (rank > max) {
    const hint =
      max < MAX_RANK ? 'Raise maxAdapterRank (--max-lora-rank).' : 'Serve this adapter merged.';
    throw argumentError(op, `an adapter of rank ${max} at most`, `rank ${rank}`, hint);
  }
  for (const [name, { inputs, outputs }] of layers) {
    const base = all.get(name);
    const whole = base && layerShape(base).whole;
    if (whole?.inputs === inputs && whole.outputs === outputs) continue;
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: path,
      expected: whole
        ? `an adapter of ${name} from ${whole.inputs} to ${whole.outputs} values`
        : 'adapters of linear layers of this model',
      got: whole ? `an adapter from ${inputs} to ${outputs} values` : name,
      hint: 'The adapter belongs to another model, or to a layer that supports only one adapter.',
    });
  }
}
