// Embedding: a table of rows by index, with an optional padding row.

import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { leading } from '../runtime/required.js';
import { embedding, scope, type Tensor, where } from '../tensor/index.js';
import { type Initializer, normal, writeInitial, zeros } from './initializers.js';
import { Module } from './module.js';
import { Parameter } from './parameter.js';

/** Options of Embedding. */
export interface EmbeddingOptions {
  /** Initializer of the table. Default: N(0, 1). */
  init?: Initializer;
  /**
   * The index of padding: its row starts as zeros and gets no gradient. Negative values count from
   * the end.
   */
  paddingIdx?: number;
}

/**
 * Looks up rows of a table [V, C]: indices [..] (i32 or i64) give rows [.., C]. Default: N(0, 1).
 */
export class Embedding extends Module {
  /** The weight [count, channels]. */
  readonly weight: Parameter;
  /** Index of padding; null if there is none. */
  readonly paddingIdx: number | null;

  /** Options, or only the initializer. Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(count: number, channels: number, given: Initializer | EmbeddingOptions = {}) {
    super();
    requireInteger('Embedding count', count, 1);
    requireInteger('Embedding channels', channels, 1);
    const options = typeof given === 'function' ? { init: given } : given;
    const { init = normal(1), paddingIdx } = readOptions(
      'Embedding',
      options,
      namesOf.EmbeddingOptions,
    );
    this.paddingIdx = paddingIdx === undefined ? null : paddingRow(paddingIdx, count);
    this.weight = new Parameter([count, channels], this.initializerOf(init, channels));
  }

  /**
   * Returns the rows [..., channels] of the indices [...]. Throws DS_INDEX on the CPU for an index
   * outside the table.
   */
  override forward(index: Tensor): Tensor {
    const { weight, paddingIdx } = this;
    if (paddingIdx === null) return embedding(weight, index);
    return scope(() => {
      const rows = embedding(weight, index);
      return where(index.eq(paddingIdx).unsqueeze(-1), rows.detach(), rows);
    });
  }

  private initializerOf(init: Initializer, channels: number): Initializer {
    const { paddingIdx } = this;
    if (paddingIdx === null || typeof init !== 'function') return init;
    const blank = (out: Tensor, row: number): void => {
      const [rows, width] = leading(out.shape, 2);
      if (row >= 0 && row < rows) zeros(out.alias([width], [1], out.offset + row * width));
    };
    const pad: Initializer = (out) => {
      writeInitial(init, out);
      blank(out, paddingIdx);
    };
    const { part } = init;
    if (part) {
      pad.part = (out, at) => {
        part(out, at);
        blank(out, paddingIdx - Math.floor(at.first / channels));
      };
    }
    return pad;
  }
}

function paddingRow(index: number, count: number): number {
  requireInteger('Embedding paddingIdx', index, -count);
  if (index < count) return index < 0 ? index + count : index;
  throw argumentError('Embedding paddingIdx', `an index below ${count}`, String(index));
}
