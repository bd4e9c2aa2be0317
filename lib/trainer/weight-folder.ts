// Whole weights of a model in training as a folder that transformers reads, with its tokenizer.
import { copyFile, mkdir, readdir, rename, rm, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { orDsError } from '../checkpoint/file-error.js';
import {
  type CheckpointWorld,
  consolidate,
  type ExportDType,
  inUnison,
  TORCH_DTYPES,
} from '../checkpoint/index.js';
import { makeFolder } from '../checkpoint/make-folder.js';
import type { Engine } from '../engine/engine.js';
import type { Tokenizer } from '../text/index.js';

/** What of a tokenizer's folder is copied, where it is there. */
const TOKENIZER_FILES: readonly string[] = [
  ...['tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json'],
  ...['chat_template.jinja', 'chat_template.json', 'vocab.json', 'merges.txt', 'tokenizer.model'],
];
const CONFIG = 'config.json';
const GENERATION = 'generation_config.json';
const WEIGHTS = 'model.safetensors';
/**
 * Where files lie until they are whole; the engine's checkpoint, where it is made for its weights
 * alone.
 */
const DRAFT = '.weights';
const PASSING = '.passing';

/** Whether a save of ours has made a file of this name. */
export function isWeightFile(name: string): boolean {
  const isPart = /^model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?$/.test(name);
  const own = [CONFIG, GENERATION, DRAFT];
  return isPart || own.includes(name) || TOKENIZER_FILES.includes(name);
}

/** What is written, and who writes it together; every rank calls. */
export interface WeightSource {
  engine: Engine;
  tokenizer: Tokenizer | null;
  world: CheckpointWorld;
}

/**
 * Writes weights, config.json and tokenizer into `dir`, in place of those that are there. The
 * weights have the dtype in which the model trains. Where `dir` has the engine's `checkpoint`, it
 * need not make another one for a model whose files are laid out unlike its parameters. Rejects on
 * all ranks with DS_IO, DS_CHECKPOINT.
 */
export async function writeWeightFolder(
  source: WeightSource,
  dir: string,
  checkpoint: string | null,
): Promise<void> {
  const { engine, world } = source;
  const description = engine.module.describe();
  await inUnison(world, 'making the folder of weights', async () => {
    await orDsError(dir, () => makeFolder(dir));
    return null;
  });
  if (!description || description.transposed.length === 0) {
    await engine.save16bitModel(dir, WEIGHTS);
  } else {
    await consolidated(source, dir, checkpoint);
  }
  await inUnison(world, 'writing config.json and tokenizer', async () => {
    if (world.rank !== 0) return null;
    const config = description && { ...description.config, torch_dtype: torchDType(engine) };
    if (config) await writeJson(dir, CONFIG, config);
    const generation = description?.generation as JsonObject | undefined;
    if (generation) await writeJson(dir, GENERATION, generation);
    if (source.tokenizer) await copyTokenizer(source.tokenizer, dir);
    return null;
  });
}

/** `file` of `dir` at once, whatever happens. */
export async function writeJson(dir: string, file: string, value: JsonObject): Promise<void> {
  const draft = join(dir, `.${file}`);
  await orDsError(dir, async () => {
    await writeFile(draft, `${JSON.stringify(value, null, 2)}\n`);
    await rename(draft, join(dir, file));
  });
}

/**
 * The first rank reads the parts that all have saved, and writes them in the layout of the files.
 */
async function consolidated(
  { engine, world }: WeightSource,
  dir: string,
  checkpoint: string | null,
): Promise<void> {
  const passing = join(dir, PASSING);
  if (checkpoint === null) await engine.saveCheckpoint(passing);
  await inUnison(world, 'consolidating weights', async () => {
    if (world.rank !== 0) return null;
    const draft = join(dir, DRAFT);
    await orDsError(dir, () => rm(draft, { recursive: true, force: true }));
    await consolidate(checkpoint ?? passing, draft, { dtype: exportDType(engine) });
    await orDsError(dir, async () => {
      for (const file of await readdir(draft)) await rename(join(draft, file), join(dir, file));
      await rmdir(draft);
      if (checkpoint === null) await rm(passing, { recursive: true });
    });
    return null;
  });
}

async function copyTokenizer(tokenizer: Tokenizer, dir: string): Promise<void> {
  await orDsError(dir, async () => {
    await mkdir(dir, { recursive: true });
    const there = new Set(await readdir(tokenizer.folder));
    for (const file of TOKENIZER_FILES.filter((name) => there.has(name))) {
      await copyFile(join(tokenizer.folder, file), join(dir, file));
    }
  });
}

function exportDType({ config }: Engine): ExportDType {
  return config.bf16.enabled ? 'bf16' : config.fp16.enabled ? 'fp16' : 'fp32';
}

const torchDType = (engine: Engine): string => TORCH_DTYPES[exportDType(engine)];
