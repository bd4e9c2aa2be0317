// The body of all encoders. A family's traits (traits.ts) select positions, norms and feed-forward
// blocks, and name the modules as transformers does.

import { Embedding } from '../../nn/embedding.js';
import { normal } from '../../nn/initializers.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import type { Device } from '../../runtime/device.js';
import { required } from '../../runtime/required.js';
import {
  checkpointSequential,
  cumsum,
  dropout,
  noGrad,
  scope,
  Tensor,
  within,
  zerosLike,
} from '../../tensor/index.js';
import type { Norm } from '../rotary/norms.js';
import { RotaryTable } from '../rotary/rotary-table.js';
import type { EncoderBodySizes } from './config.js';
import { createEncoderNorm, type EncoderContext, EncoderLayer } from './layer.js';
import { findAt, placeChild } from './paths.js';
import { distanceRows, type RelativeDistances } from './relative.js';

/** Inputs of an encoder in addition to tokens. */
export interface EncoderInputs {
  /** 1 for tokens and 0 for padding, [B, T]. Default: no padding. */
  mask?: Tensor | null;
  /** Index of each token's text in a pair, 0 or 1, [B, T]. Default: 0. */
  types?: Tensor | null;
}

/** Paths of the table of relative positions and its norm in the body. */
const DISTANCES = 'encoder.rel_embeddings';
const DISTANCE_NORM = 'encoder.LayerNorm';
/** Number of cached tables of relative positions, by length. */
const KEPT = 4;

/** Embedding and layers of an encoder. The family names the modules. */
export class EncoderBody extends Module {
  readonly #tables: { all: RotaryTable; ofWindows: RotaryTable } | null;
  readonly #indices = new Map<string, Tensor>();

  /** @internal The model creates it. */
  constructor(private readonly body: EncoderBodySizes) {
    super();
    const { vocabSize, maxSeq, channels, embeddingSize, types, layers, names, traits } = body;
    const { embedding, layer } = names;
    const { padTokenId: paddingIdx } = body;
    const init = normal(body.initializerRange);
    const createTable = (rows: number): Embedding => new Embedding(rows, embeddingSize, { init });
    placeChild(
      this,
      embedding.words,
      new Embedding(vocabSize, embeddingSize, { init, paddingIdx }),
    );
    if (embedding.positions && traits.positions === 'absolute') {
      placeChild(this, embedding.positions, createTable(maxSeq));
    }
    if (embedding.positions && traits.positions === 'afterPadding') {
      const rows = maxSeq + paddingIdx + 1;
      placeChild(
        this,
        embedding.positions,
        new Embedding(rows, embeddingSize, { init, paddingIdx }),
      );
    }
    if (embedding.types && types > 0) placeChild(this, embedding.types, createTable(types));
    placeChild(this, embedding.norm, createEncoderNorm(body, embeddingSize));
    if (this.projects)
      placeChild(this, required(embedding.project), new Linear(embeddingSize, channels));
    placeChild(
      this,
      layer.list,
      Array.from({ length: layers }, (_, i) => new EncoderLayer(body, i)),
    );
    if (traits.positions === 'relative') {
      placeChild(this, DISTANCES, new Embedding(2 * body.buckets, channels, { init }));
      placeChild(this, DISTANCE_NORM, createEncoderNorm(body, channels));
    }
    if (traits.lastNorm) placeChild(this, traits.lastNorm, createEncoderNorm(body, channels));
    const rotaryDim = channels / body.heads;
    const createAngles = (ropeTheta: number) =>
      new RotaryTable({ rotaryDim, ropeTheta }, null, maxSeq);
    this.#tables =
      traits.positions === 'rotary'
        ? { all: createAngles(body.ropeTheta), ofWindows: createAngles(body.windowRopeTheta) }
        : null;
  }

  /** @internal Frees cached tables of positions, which the next forward rebuilds. */
  releaseTables(): void {
    this.#tables?.all.release();
    this.#tables?.ofWindows.release();
    for (const index of this.#indices.values()) index.dispose();
    this.#indices.clear();
  }

  private get projects(): boolean {
    const { names, embeddingSize, channels } = this.body;
    return names.embedding.project !== undefined && embeddingSize !== channels;
  }

  /** @internal The token table. */
  get words(): Embedding {
    return findAt<Embedding>(this, this.body.names.embedding.words);
  }

  /** @internal The layers, first to last. */
  get blocks(): EncoderLayer[] {
    return findAt<EncoderLayer[]>(this, this.body.names.layer.list);
  }

  /** Returns hidden states [B, T, C] of tokens [B, T]. */
  override forward(ids: Tensor, { mask = null, types = null }: EncoderInputs = {}): Tensor {
    const { traits, activationCheckpointing, numberCheckpoints = null } = this.body;
    const documents = mask && noGrad(() => mask.to('i32').sub(1));
    let x = scope(() => this.embed(ids, types, mask));
    const vectors = this.distanceVectors();
    if (activationCheckpointing) {
      const layers = this.blocks.map(
        (layer) =>
          (input: Tensor, ...[seen = null, of = null]: readonly (Tensor | null)[]) =>
            layer.call(input, this.createContext(input, seen, of)),
      );
      x = checkpointSequential(layers, numberCheckpoints, x, documents, vectors);
    } else {
      const context = this.createContext(x, documents, vectors);
      for (const layer of this.blocks) {
        const input = x;
        x = scope(() => layer.call(input, context));
        input.dispose();
      }
    }
    return traits.lastNorm ? findAt<Norm>(this, traits.lastNorm).call(x) : x;
  }

  private embed(ids: Tensor, types: Tensor | null, mask: Tensor | null): Tensor {
    const { names, traits, types: count, dropout: rate } = this.body;
    const { embedding } = names;
    let x = this.words.call(ids);
    if (embedding.types && count > 0) {
      const table = findAt<Embedding>(this, embedding.types);
      x = x.add(types ? table.call(types) : table.weight.narrow(0, 0, 1));
    }
    if (embedding.positions && traits.positions === 'absolute') {
      x = x.add(findAt<Embedding>(this, embedding.positions).weight.narrow(0, 0, ids.size(1)));
    }
    if (embedding.positions && traits.positions === 'afterPadding') {
      x = x.add(findAt<Embedding>(this, embedding.positions).call(this.tokenPositions(ids)));
    }
    x = findAt<Norm>(this, embedding.norm).call(x);
    if (mask && traits.positions === 'relative') x = x.mul(mask.to(x.dtype).unsqueeze(2));
    if (this.training) x = dropout(x, rate);
    return this.projects ? findAt<Linear>(this, required(embedding.project)).call(x) : x;
  }

  /** Returns rows of the table of positions: padTokenId for padding, the next ones for tokens. */
  private tokenPositions(ids: Tensor): Tensor {
    const { padTokenId } = this.body;
    return noGrad(() => {
      const isToken = ids.ne(padTokenId).to('i32');
      return cumsum(isToken, 1).to('i32').mul(isToken).add(padTokenId);
    });
  }

  private createContext(
    x: Tensor,
    documents: Tensor | null,
    vectors: Tensor | null,
  ): EncoderContext {
    const T = x.size(1);
    const tables = this.#tables;
    const selectAngles = (table: RotaryTable) => table.rowsAt(0, T, { length: T, like: x });
    const angles = tables && {
      all: selectAngles(tables.all),
      ofWindows: selectAngles(tables.ofWindows),
    };
    // The loss of answers includes outputs at padding, so padding sees all tokens in that task.
    const seesTokens = documents && this.body.task === 'question-answering';
    const queries = seesTokens ? zerosLike(documents) : null;
    const distances = vectors && this.computeDistances(T, x.device, vectors);
    return {
      documents: documents && queries ? { queries, keys: documents } : documents,
      angles,
      distances,
    };
  }

  /** Returns the vectors of relative positions; null in families without them. */
  private distanceVectors(): Tensor | null {
    if (this.body.traits.positions !== 'relative') return null;
    return findAt<Norm>(this, DISTANCE_NORM).call(findAt<Embedding>(this, DISTANCES).weight);
  }

  private computeDistances(length: number, device: Device, vectors: Tensor): RelativeDistances {
    const { buckets, maxDistance, dropout: rate } = this.body;
    const key = `${device.name} ${length}`;
    const make = (): Tensor =>
      Tensor.from(distanceRows(length, buckets, maxDistance), { shape: [length, length], device });
    const index = this.#indices.get(key) ?? within(null, make);
    this.#indices.set(key, index);
    for (const oldest of [...this.#indices.keys()].slice(0, -KEPT)) {
      this.#indices.get(oldest)?.dispose();
      this.#indices.delete(oldest);
    }
    return { vectors, index, dropout: this.training ? rate : 0 };
  }
}
