// The adapters of an inference engine: slots on the device, their names, and the rows of a step.

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
  partOf,
  shapeOf,
  zeros,
} from './adapted-linear.js';
import { listOf, WIDE_ROWS } from './rows.js';
import { type AdapterSettings, MAX_RANK } from './settings.js';

/** The lists of a step on the device: see the ops AdapterShrink and AdapterExpand. */
interface Lists {
  /** Rows sorted by adapter, [entries] i32. */
  readonly entries: Tensor;
  /** [tiles, 3] i32. */
  readonly tiles: Tensor;
}

/** A loaded adapter. */
interface Loaded {
  readonly slot: number;
  /** Part of the salt of the prefix cache: another number after each load. */
  readonly version: number;
  /** Sequences in progress. */
  users: number;
  /** unload() was called: the slot is free after the last user. */
  isLeaving: boolean;
}

/** A request's hold on an adapter. */
export interface AdapterUse {
  readonly slot: number;
  readonly version: number;
  /** Ends the use of one sequence. */
  release(): void;
}

/** Rounds ranks up to the steps of tensor cores. */
const RANK_STEP = 16;
/** Layers of one launch. */
const TOGETHER = 3;
/** The most rows of A of all adapters of a layer that a product computes for every input. */
const MAX_BEHIND = 1024;

/** The adapters of a model, with one set of memory for each layer. */
export class Adapters implements ProductAddition {
  private readonly loaded = new Map<string, Loaded>();
  private readonly free: number[];
  private readonly layers = new Map<string, AdaptedLinear>();
  private readonly max: number;
  private versions = 0;
  private lists: Lists | null = null;
  /** The first layer of the last joint product of the running forward. */
  private last: AdaptedLinear | null = null;
  /** The layers of the product that followed each one in an earlier forward. */
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
        const layer = new AdaptedLinear(base, this.slotsOf(base, { device, dtype }), running);
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

  /** Joins the layers of the model, with A behind their weights where one product computes both. */
  private placeFactors(): void {
    joinAll(this.model);
    for (const layer of this.layers.values()) {
      if (layer.behind) joinMemory([layer]);
      const { slots } = layer;
      const [count, , most] = leading(slots.b.shape, 3);
      slots.a ??= zeros([count, most, shapeOf(layer.base).inputs], slots.b);
    }
  }

  /**
   * Prepares a model, and loads the adapters of the settings. All ranks that share a model make the
   * same call. Rejects with DS_ARGUMENT for a rank above the limit, DS_CHECKPOINT for an adapter of
   * another model, DS_OUT_OF_MEMORY, and with the errors of AdapterReader.open().
   */
  static async install(op: string, model: CausalLM, given: AdapterSettings): Promise<Adapters> {
    const readers = new Map<string, AdapterReader>();
    try {
      for (const [name, place] of given.folders) {
        readers.set(name, await AdapterReader.open(`${op} adapters.${name}`, place));
      }
      const largest = Math.max(0, ...Array.from(readers.values(), ({ rank }) => rank));
      const rank = given.rank > 0 ? given.rank : Math.max(largest, given.isOpen ? RANK_STEP : 1);
      const settings = { ...given, rank: Math.min(rank, MAX_RANK) };
      const all = adaptableOf(model);
      for (const [name, reader] of readers) {
        requireFitting(`${op} adapters.${name}`, reader, all, settings.rank);
      }
      const named = new Set([...readers.values()].flatMap(({ layers }) => [...layers.keys()]));
      const paths = [...all.keys()].filter((path) => named.has(path) || given.isOpen);
      const made = new Adapters(model, settings, paths);
      try {
        for (const [name, reader] of readers) await made.fill(name, reader);
      } catch (error) {
        made.dispose();
        throw error;
      }
      return made;
    } finally {
      for (const reader of readers.values()) await reader.close();
    }
  }

  /** Names in the order of loading. */
  get names(): readonly string[] {
    return [...this.loaded.keys()];
  }

  /** Slots, loaded or not. */
  get count(): number {
    return this.settings.count;
  }

  /** Throws DS_ARGUMENT unless an adapter has this name. */
  require(op: string, name: string): void {
    if (this.loaded.has(name)) return;
    const known = this.names.map((name) => JSON.stringify(name)).join(', ') || 'none is loaded';
    throw argumentError(op, `the name of a loaded adapter (${known})`, formatValue(name));
  }

  /** Holds an adapter for `sequences` sequences. Throws DS_ARGUMENT. */
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
   * Loads an adapter beside the others. Rejects with DS_ARGUMENT if the name is taken or the rank
   * is too large, DS_LIMIT if no slot is free, and as install() does.
   */
  async load(op: string, name: string, place: string): Promise<void> {
    this.requireNew(op, name);
    const reader = await AdapterReader.open(op, place);
    try {
      const all = new Map(Array.from(this.layers, ([path, { base }]) => [path, base]));
      requireFitting(op, reader, all, this.settings.rank);
      await this.fill(name, reader, op);
    } finally {
      await reader.close();
    }
  }

  /**
   * Unloads an adapter. Requests in progress keep it; new requests do not find it. Throws
   * DS_ARGUMENT for an unknown name.
   */
  unload(op: string, name: string): void {
    this.require(op, name);
    const loaded = required(this.loaded.get(name));
    this.loaded.delete(name);
    loaded.isLeaving = true;
    if (loaded.users === 0) this.free.push(loaded.slot);
  }

  /** Runs a forward whose rows have adapters. */
  run<T>(lists: Lists | null, body: () => T): T {
    this.lists = lists;
    this.last = null;
    try {
      return body();
    } finally {
      this.lists = null;
    }
  }

  /** Runs a forward of `rows` rows, all with one adapter. Throws DS_ARGUMENT for another name. */
  with<T>(name: string, rows: number, body: () => T): T {
    this.require('InferenceEngine adapter', name);
    const { slot } = required(this.loaded.get(name));
    const numbers = listOf(Array.from({ length: rows }, () => slot));
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
      for (let at = 0; at < pairs.length; at += TOGETHER) {
        const [one, two = null, three = null] = pairs.slice(at, at + TOGETHER);
        const first = required(one);
        const count = Math.min(TOGETHER, pairs.length - at);
        const h = Tensor.empty([count, entries.size(0), this.max], x.dtype, x.device);
        kernels.adapterShrink({
          x: rows,
          rows: entries,
          tiles,
          a: required(first.a),
          ranks: first.ranks,
          a2: two?.a ?? null,
          ranks2: two?.ranks ?? null,
          a3: three?.a ?? null,
          ranks3: three?.ranks ?? null,
          h,
        });
        kernels.adapterExpand({
          h,
          rows: entries,
          tiles,
          b: first.b,
          ranks: first.ranks,
          out: first.out,
          b2: two?.b ?? null,
          ranks2: two?.ranks ?? null,
          out2: two?.out ?? null,
          b3: three?.b ?? null,
          ranks3: three?.ranks ?? null,
          out3: three?.out ?? null,
        });
      }
    });
  }

  /** See ProductAddition. */
  product(x: Tensor, layers: readonly Module[], isGated: boolean): Tensor | null {
    const { entries, tiles } = required(this.lists);
    const inputs = x.size(-1);
    const rows = x.numel / inputs;
    // Up to WIDE_ROWS rows, the lists contain every row of the step.
    if (
      rows > WIDE_ROWS ||
      rows !== entries.size(0) ||
      layers.length > TOGETHER ||
      (isGated && layers.length !== 2)
    )
      return null;
    // The product reads A of unused adapters too: with few in use, two more kernels cost less.
    if (tiles.size(0) < this.count / 2) return null;
    const adapted = layers.filter((layer) => layer instanceof AdaptedLinear);
    const whole = adapted.length === layers.length ? withFactors(adapted) : null;
    if (!whole) return null;
    const [one, two = null, three = null] = adapted.map(({ slots }) => slots);
    const first = required(one);
    const outputs = adapted.reduce((sum, { slots }) => sum + slots.b.size(1), 0);
    const outer = x.shape.slice(0, -1);
    return scope(() => {
      const wide = linear(x.reshape([rows, inputs]), ...whole);
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
        b2: two?.b ?? null,
        ranks2: two?.ranks ?? null,
        b3: three?.b ?? null,
        ranks3: three?.ranks ?? null,
        // After several layers comes attention, which fills the cache.
        next: isInPlace ? null : next,
        out,
        gated: isGated,
      });
      const strides = contiguousStrides([...outer, isInPlace ? wide.size(1) : width]);
      return out.alias([...outer, width], strides);
    });
  }

  /** The weight of the product that follows one of `layers`; null in the first forward. */
  private nextWeight(layers: readonly AdaptedLinear[]): Tensor | null {
    const first = required(layers[0]);
    if (this.last) this.following.set(this.last, layers);
    this.last = first;
    const next = this.following.get(first);
    return (next && withFactors(next)?.[0]) ?? null;
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

  /** Allocates B of a layer, and says where A may be. Throws DS_OUT_OF_MEMORY. */
  private slotsOf(
    base: AdaptableLinear,
    { device, dtype }: { device: Device; dtype: DType },
  ): LayerSlots {
    const { inputs, outputs } = shapeOf(base);
    const { max } = this;
    const { count } = this.settings;
    const behind = count * max <= MAX_BEHIND ? [count, max, inputs] : null;
    const b = zeros([count, outputs, max], { dtype, device });
    try {
      return { a: null, noBias: null, behind, b, ranks: zeros([count], { dtype: 'i32', device }) };
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
      got: 'one more',
      hint: 'Unload one, or raise maxAdapters (--max-loras).',
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
          const held = { a: required(slots.a), b: slots.b };
          // A product with all factors computes rows beyond the rank too.
          for (const list of [held.a, held.b]) kernels.fill({ out: row(list), value: 0 });
          const [a, b] = values;
          if (a && b) {
            const [first, second] = partOf(base, a, b);
            const onDevice = first.to(slots.b.device);
            kernels.copy({
              in: cast(onDevice, slots.b.dtype),
              out: row(held.a).narrow(0, 0, rank),
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

/**
 * The weights of layers and then A of each one, as one weight, with its bias; null if other memory
 * is between them.
 */
function withFactors(layers: readonly AdaptedLinear[]): [Tensor, Tensor | null] | null {
  const factors = layers.map(({ slots }) => required(slots.a));
  const weight = asOne([...layers.map(({ weight }) => weight), ...factors]);
  if (!layers.some(({ bias }) => bias)) return weight && [weight, null];
  const parts = [...layers.map(({ bias }) => bias), ...layers.map(({ slots }) => slots.noBias)];
  const biases = parts.flatMap((part) => (part ? [part] : []));
  const bias = biases.length === parts.length ? asOne(biases) : null;
  return weight && bias && [weight, bias];
}

/** Tensors in turn in memory as one, with the last dim of a weight; null if others are between. */
function asOne(parts: readonly Tensor[]): Tensor | null {
  const [first] = leading(parts, 1);
  let end = first.offset;
  for (const { buffer, offset, numel } of parts) {
    if (buffer !== first.buffer || offset !== end) return null;
    end += numel;
  }
  const [count, inner] = [end - first.offset, first.shape.slice(1)];
  return first.alias([count / (inner[0] ?? 1), ...inner]);
}

/** The layers of a model that may have adapters, by path: all linear layers except the head. */
function adaptableOf(model: CausalLM): Map<string, AdaptableLinear> {
  const found = new Map<string, AdaptableLinear>();
  for (const [path, module] of model.namedModules()) {
    const last = path.slice(path.lastIndexOf('.') + 1);
    if (isAdaptable(module) && !HEADS.includes(last)) found.set(path, module);
  }
  return found;
}

/** Throws DS_ARGUMENT for a rank above `max`, DS_CHECKPOINT for layers that `all` lacks. */
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
    const whole = base && shapeOf(base).whole;
    if (whole?.inputs === inputs && whole.outputs === outputs) continue;
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: path,
      expected: whole
        ? `an adapter of ${name} from ${whole.inputs} to ${whole.outputs} values`
        : 'adapters of linear layers of this model',
      got: whole ? `one from ${inputs} to ${outputs}` : name,
      hint: 'The adapter belongs to another model, or to a layer that supports only one adapter.',
    });
  }
}
