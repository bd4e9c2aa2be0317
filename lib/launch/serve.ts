// `ds serve`: a folder's model behind HTTP, until a signal ends it.

import { readFileSync } from 'node:fs';
import { basename, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { isRemote } from '../hub/names.js';
import { formatValue } from '../runtime/format-value.js';
import { isLoopback } from '../runtime/loopback.js';
import { errorMessage } from '../runtime/system-error.js';
import {
  type EngineOptions,
  type InferenceServer,
  type ModelPool,
  openPool,
  openServed,
  requireKey,
  serve,
  servePool,
} from '../serve/index.js';

import { REQUEST_LIMITS, readLimits, SERVER_LIMITS } from '../serve/limits.js';
import { SERVE } from '../serve/serve-options.js';
import { refuse } from './argument-error.js';
import { fromFlags } from './declared-flags.js';
import { engineOptions, SERVER, type ServeFlags, textOf } from './engine-flags.js';
import { modelsIn } from './models-dir.js';

/** Seconds that ranks have to end after their server. */
const MARGIN = 10;

/** Exit code after a failure of the engine that only a new start mends. */
const ENGINE_FAILED = 3;
/** Milliseconds from a failure of the engine to the end of the server: /health answers 503. */
const LINGER_MS = 2000;
/** Milliseconds that a failed engine has to free its memory; then the process ends. */
const RELEASE_MS = 10_000;

/** Environment variable of a key. */
const KEY = 'DS_API_KEY';
const SIGNALS = ['SIGTERM', 'SIGINT'] as const;

/** Serves with one process, or with --tp ranks. Returns the exit code. Throws as serveHere(). */
export async function serveCommand(folder: string | undefined, flags: ServeFlags): Promise<number> {
  requireModels(folder, flags);
  if (folder === undefined) return serveHere(null, flags);
  return (flags.tp ?? 1) > 1 ? serveOverRanks(folder, flags) : serveHere(folder, flags);
}

/** Throws DS_ARGUMENT unless there is one model, or several without options of one model. */
function requireModels(folder: string | undefined, flags: ServeFlags): void {
  const { model, modelsDir, adapter, maxLoras, revision, modelMemory, modelIdle } = flags;
  if (model === undefined && modelsDir === undefined) {
    const several = '--model NAME=FOLDER';
    if (folder === undefined) refuse('serve', `a model, ${several} or --models-dir`, 'none');
    const given = modelMemory === undefined ? modelIdle : modelMemory;
    if (given === undefined) return;
    refuse(
      '--model-memory, --model-idle',
      `${several} or --models-dir together with it`,
      'one model',
    );
  }
  const option = model === undefined ? '--models-dir' : '--model';
  if (folder !== undefined) {
    refuse(option, 'no model folder as the argument', formatValue(folder));
  }
  const { modelName } = fromFlags({ modelName: SERVE.model }, flags);
  const single = {
    '--tp': (flags.tp ?? 1) > 1 || undefined,
    '--adapter': adapter,
    '--max-loras': maxLoras,
    '--revision': revision,
    '--model-name': modelName,
  };
  const odd = Object.entries(single).find(([, value]) => value !== undefined);
  if (odd)
    refuse(
      odd[0],
      `no such option with ${option}`,
      'both',
      'Serve this model alone: ds serve FOLDER.',
    );
}

/** Starts the ranks. Rank 0 serves. */
async function serveOverRanks(folder: string, flags: ServeFlags): Promise<number> {
  const { tp, device } = flags;
  const { drainSeconds } = readLimits('serve limits', fromFlags(SERVER_LIMITS, flags));
  keysOf(flags.apiKeyFile); // A rank would read the model before it refuses a key.
  if (device?.includes(':')) {
    const hint = 'Set CUDA_VISIBLE_DEVICES to choose GPUs.';
    refuse('--device', '"cuda" or "cpu" without a number, with --tp', `"${device}"`, hint);
  }
  const [{ launch }, { takeLaunchOptions }] = await Promise.all([
    import('./launch.js'),
    import('./launch-options.js'),
  ]);
  const { options } = takeLaunchOptions([], null);
  const place = (await hasGpus(device)) ? { num_gpus: tp } : { num_procs: tp };
  const grace_period = drainSeconds + MARGIN;
  const name = require.resolve('./serve-rank.js');
  const program = { name, args: [folder, JSON.stringify(flags)], node: process.execArgv };
  const codes = new Set<number>();
  const onSignal = (_: string, number: number): unknown => codes.add(128 + number);
  for (const signal of SIGNALS) process.once(signal, onSignal);
  const code = await launch({ ...options, ...place, grace_period, no_local_rank: true }, program);
  // A signal is how a server ends.
  return codes.has(code) ? 0 : code;
}

async function hasGpus(device: string | undefined): Promise<boolean> {
  if (device === 'cpu') return false;
  if (device !== undefined && device !== 'auto') return true;
  return (await import('../runtime/device.js')).probeGpus().deviceCount > 0;
}

/**
 * Serves until the first signal, then lets running requests end; a second one ends the process at
 * once. `folder` is null for several models. Returns the exit code. Throws as serve() and
 * initInference() do.
 */
export async function serveHere(folder: string | null, flags: ServeFlags): Promise<number> {
  const options = engineOptions(flags);
  const apiKeys = keysOf(flags.apiKeyFile);
  const given = fromFlags(SERVE, flags);
  const { host = SERVE.host.absent('') } = given;
  const { model = folder === null ? SERVE.model.absent('') : nameOf(folder) } = given;
  const chatTemplate = textOf(flags.chatTemplate);
  const stopped = waitForSignal();
  let engine: ReturnType<typeof openServed> | null = null;
  let code = 0;
  let timer: NodeJS.Timeout | undefined;
  const open = (folder: string) => () => {
    engine = openServed(folder, options).then(async (item) => {
      await item.follow();
      return item;
    });
    return engine;
  };
  const limits = fromFlags({ ...REQUEST_LIMITS, ...SERVER_LIMITS }, flags);
  const settings = { ...given, host, model, apiKeys, chatTemplate, limits };
  const server = await (folder === null
    ? servePool(poolOf(flags, options), settings)
    : serve(open(folder), settings));
  if (folder !== null) console.log(`${model} at ${server.url}/v1: loading ${folder}`);
  if (given.ui) console.log(`chat at ${server.url}/`);
  if (apiKeys.length === 0 && !isLoopback(host)) {
    console.error(
      `ds: every client that reaches ${host} may send requests. To require a key, set ${KEY} or --api-key-file.`,
    );
  }
  try {
    await Promise.race([server.ready, stopped]);
    if (server.served || server.pool) console.log(introduction(server));
    const cause = await Promise.race([stopped, server.failed]);
    if (cause instanceof Error) {
      code = ENGINE_FAILED;
      timer = await endFailed(server, cause, stopped);
    } else {
      console.log(
        `${cause}: ${server.admission.running} requests are in progress; a second signal ends them at once`,
      );
    }
  } finally {
    await server.stop();
    await (engine as ReturnType<typeof openServed> | null)?.then(
      (item) => item.destroy(),
      () => {},
    );
  }
  clearTimeout(timer);
  return code;
}

/** The name of the model without --model-name. */
const nameOf = (folder: string): string => (isRemote(folder) ? folder : basename(resolve(folder)));

/**
 * Lets health checks see the failure before connections are refused. Returns the timer that ends
 * the process with ENGINE_FAILED if the engine does not free its memory in time.
 */
async function endFailed(
  server: InferenceServer,
  { message }: Error,
  stopped: Promise<string>,
): Promise<NodeJS.Timeout> {
  console.error(`ds serve: ${message}`);
  const timer = setTimeout(() => process.exit(ENGINE_FAILED), LINGER_MS + RELEASE_MS).unref();
  await Promise.race([delay(LINGER_MS, null, { ref: false }), stopped]);
  await server.kill();
  return timer;
}

/** The first signal; after it they have their usual effect. */
function waitForSignal(): Promise<string> {
  return new Promise((resolve) => {
    const onSignal = (signal: string): void => {
      for (const name of SIGNALS) process.off(name, onSignal);
      resolve(signal);
    };
    for (const name of SIGNALS) process.on(name, onSignal);
  });
}

/** The pool of --model, then --models-dir. Throws DS_ARGUMENT for two models of one name. */
function poolOf(
  { model = {}, modelsDir, ...flags }: ServeFlags,
  options: EngineOptions,
): ModelPool {
  const others = modelsDir === undefined ? {} : modelsIn(modelsDir);
  const twice = Object.keys(others).find((name) => Object.hasOwn(model, name));
  if (twice !== undefined) refuse('--models-dir', 'a name for each model', formatValue(twice));
  const { modelMemory: memory, modelIdle: idleSeconds } = fromFlags(SERVER, flags);
  const given = { memory, idleSeconds };
  const limits = Object.entries(given).filter(([, value]) => value !== undefined);
  return openPool({ ...model, ...others }, options, Object.fromEntries(limits));
}

function introduction({ served, pool, url }: InferenceServer): string {
  if (pool) {
    const names = pool.models.map(({ name }) => name).join(', ');
    return `ready at ${url}/v1: ${names}, each loaded by its first request`;
  }
  if (!served) return '';
  const { maxTokens, tokenizer, canChat } = served;
  const without = [
    ...(tokenizer ? [] : ['without a tokenizer: prompts are tokens']),
    ...(canChat || !tokenizer ? [] : ['without a chat template: completions only']),
  ];
  return [`ready: ${maxTokens} tokens of prompt and answer`, ...without].join(', ');
}

/**
 * The keys of the file, one a line, and of the environment. Throws DS_ARGUMENT for an unreadable
 * or empty file, and for a key that does not fit a header.
 */
function keysOf(file: string | undefined): string[] {
  const given = process.env[KEY]?.trim();
  if (given === '') refuse(KEY, 'a key, or an unset variable', 'an empty string');
  if (given !== undefined) requireKey(KEY, given);
  const keys = given === undefined ? [] : [given];
  if (file === undefined) return keys;
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (cause) {
    refuse('--api-key-file', 'a readable file', errorMessage(cause));
  }
  for (const [i, line] of text.split('\n').entries()) {
    const key = line.trim();
    if (key === '') continue;
    requireKey(`--api-key-file ${file}, line ${i + 1}`, key);
    keys.push(key);
  }
  const isEmpty = text.trim() === '';
  if (isEmpty) refuse('--api-key-file', 'a file with one key on each line', 'an empty file');
  return keys;
}
