// An engine for embedding and ranking models: encoders, and decoders with pooling or one label.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { findOrPullFolder } from '../hub/local-folder.js';
import type { InferenceConfig } from '../inference/index.js';
import { CausalLM, fromPretrained } from '../models/index.js';
import { detectTask } from '../models/tasks/task.js';
import type { TaskModel } from '../models/tasks/task-model.js';
import { device as findDevice } from '../runtime/device.js';
import { waitForEventLoop } from '../runtime/event-loop.js';
import { argumentError } from '../runtime/input-errors.js';
import { parseJson } from '../runtime/parse-json.js';
import { required } from '../runtime/required.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import { hasTokenizer } from '../text/gguf-tokenizer.js';
import { Tokenizer } from '../text/index.js';
import { padRows } from '../text/padding.js';
import type { EngineStats, ServedEncoder, ServedEngine, ServedPiece } from './served-engine.js';

/** Rows of one forward. */
const BATCH = 32;
const DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' } as const;

/**
 * Returns whether the model in the folder has a head for another task than next-token prediction.
 * Rejects with the errors of findOrPullFolder().
 */
export async function isEncoderFolder(source: string, revision?: string): Promise<boolean> {
  const folder = await findOrPullFolder('serve', source, { need: 'config', revision });
  if (existsSync(join(folder, 'modules.json'))) return true;
  let config: JsonObject;
  try {
    config = parseJson(readFileSync(join(folder, 'config.json'), 'utf8')) as JsonObject;
  } catch {
    return false; // A GGUF file, a checkpoint, or a folder that initInference() refuses.
  }
  const task = detectTask(config);
  return task !== null && task !== 'causal-lm';
}

/** The options of EngineOptions that encoders use. */
interface EncoderOptions {
  config?: InferenceConfig;
  tokenizer?: string;
  revision?: string;
}

/**
 * Loads a model that embeds or ranks. Rejects with DS_ARGUMENT for a model of another task or
 * without a tokenizer, and with the errors of models.fromPretrained().
 */
export async function openEncoder(
  source: string,
  { config = {}, tokenizer: tokenizerFolder, revision }: EncoderOptions = {},
): Promise<EncoderEngine> {
  const dtype = DTYPES[config.dtype as keyof typeof DTYPES];
  const loadOptions = { ...(dtype && { dtype }), ...(revision !== undefined && { revision }) };
  const model = await fromPretrained(source, { task: 'auto', ...loadOptions });
  if (model instanceof CausalLM) throw argumentError('serve', 'an encoder', 'a language model');
  const { task, labels } = model;
  if (task !== 'embedding' && !(task === 'sequence-classification' && labels.length === 1)) {
    const expected = 'a model that generates, embeds, or ranks by one label';
    const hint = 'nn.models.fromPretrained(folder, { task }) runs other tasks in a program.';
    throw argumentError('serve', expected, `the task "${task}" with ${labels.length} labels`, hint);
  }
  model.to(findDevice(config.device ?? 'auto'));
  model.eval();
  const folderOptions = {
    need: 'tokenizer',
    revision: tokenizerFolder === undefined ? revision : undefined,
  } as const;
  const files = await findOrPullFolder('serve', tokenizerFolder ?? source, folderOptions);
  if (hasTokenizer(files)) return new EncoderEngine(model, Tokenizer.fromPretrained(files));
  throw argumentError(
    'serve',
    'an encoder with a tokenizer',
    'a folder without one',
    'Set --tokenizer.',
  );
}

/** Computes one batch in each turn of the event loop. The engine owns the model. */
export class EncoderEngine implements ServedEngine {
  readonly maxTokens: number;
  readonly module: ServedEngine['module'];
  readonly encoder: ServedEncoder;
  private tokens = 0;

  constructor(
    private readonly model: TaskModel,
    readonly tokenizer: Tokenizer,
  ) {
    this.maxTokens = model.maxLength ?? model.maxSeq;
    this.module = { vocabSize: model.vocabSize, describe: () => model.describe() };
    this.encoder = {
      task: model.task === 'embedding' ? 'embedding' : 'ranking',
      width: model.hiddenSize,
      embed: (rows) => this.embed(rows),
      rank: (query, documents) => this.rank(query, documents),
    };
  }

  /** Throws DS_ARGUMENT: the model generates no text. */
  // biome-ignore lint/correctness/useYield: it only throws.
  async *stream(): AsyncGenerator<ServedPiece> {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'serve',
      expected: 'a model that generates',
      got: `a model of the task "${this.model.task}"`,
    });
  }

  stats(): EngineStats {
    const none = { running: 0, waiting: 0, blocksUsed: 0, blocks: 1, preemptions: 0 };
    const counts = { prefixQueries: 0, prefixHits: 0, generatedTokens: 0 };
    const verified = { proposedTokens: 0, acceptedTokens: 0 };
    return { ...none, ...counts, ...verified, promptTokens: this.tokens };
  }

  /** Returns at once: an encoder runs on one rank. */
  async follow(): Promise<void> {}

  /** Frees the model. */
  async destroy(): Promise<void> {
    for (const parameter of this.model.parameters()) parameter.dispose();
  }

  private async embed(rows: readonly (readonly number[])[]): Promise<Float32Array[]> {
    const all = rows.map((row) => ({ ids: Int32Array.from(row) }));
    return this.computeOutputs(all);
  }

  private async rank(query: string, documents: readonly string[]) {
    const pairs = documents.map((document) =>
      this.tokenizer.encodePair(query, document, { maxLength: this.maxTokens }),
    );
    const logits = await this.computeOutputs(pairs);
    const scores = logits.map((logit) => 1 / (1 + Math.exp(-required(logit[0]))));
    return { scores, tokens: pairs.reduce((sum, { ids }) => sum + ids.length, 0) };
  }

  /** Returns the outputs by row. Rows of similar length share a batch. */
  private async computeOutputs(rows: readonly { ids: Int32Array; types?: Int32Array }[]) {
    const order = rows
      .map((row, i) => ({ row, i }))
      .sort((a, b) => b.row.ids.length - a.row.ids.length);
    const outputsByRow: Float32Array[] = [];
    for (let at = 0; at < order.length; at += BATCH) {
      const some = order.slice(at, at + BATCH);
      for (const [b, values] of this.forward(some.map(({ row }) => row)).entries()) {
        outputsByRow[required(some[b]).i] = values;
      }
      await waitForEventLoop();
    }
    return outputsByRow;
  }

  private forward(rows: readonly { ids: Int32Array; types?: Int32Array }[]): Float32Array[] {
    const { model, tokenizer } = this;
    const pad = model.padTokenId ?? tokenizer.padId ?? tokenizer.eosId ?? 0;
    const device = required(model.parameters()[0]).device;
    this.tokens += rows.reduce((sum, { ids }) => sum + ids.length, 0);
    return noGrad(() =>
      scope(() => {
        const { ids, mask } = padRows(
          'serve',
          rows.map((row) => row.ids),
          pad,
          { device },
        );
        const [, length = 0] = ids.shape;
        const types = new Int32Array(rows.length * length);
        for (const [b, row] of rows.entries()) types.set(row.types ?? [], b * length);
        const shape = [rows.length, length];
        const typeInput = model.hasTypes ? { types: Tensor.from(types, { shape, device }) } : {};
        const out = model.call(ids, { mask, ...typeInput }).to('f32');
        const values = out.toRaw() as Float32Array;
        const width = out.size(1);
        return rows.map((_, b) => values.slice(b * width, (b + 1) * width));
      }),
    );
  }
}
