// `ds serve`: serves the model of a folder over HTTP until a signal ends it.

import { basename, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { isRemote } from '../hub/names.js';
import { formatValue } from '../runtime/format-value.js';
import { isLoopback } from '../runtime/loopback.js';
import {
  type EngineOptions,
  type InferenceServer,
  type ModelPool,
  openPool,
  openServed,
  serve,
  servePool,
} from '../serve/index.js';

import { REQUEST_LIMITS, readLimits, SERVER_LIMITS } from '../serve/limits.js';
import { SERVE } from '../serve/serve-options.js';
import { refuse } from './argument-error.js';
import { fromFlags } from './declared-flags.js';
import { readEngineOptions, readTemplate, SERVER, type ServeFlags } from './engine-flags.js';
import { KEY_VARIABLE, openKeyFile, readKeys } from './key-file.js';
import { findModels } from './models-dir.js';
import { npmContainerNotice, onNpmEnd } from './npm-parent.js';

/** Seconds that ranks have to end after their server. */
const RANK_END_SECONDS = 10;

/** Exit code after a failure of the engine that requires a restart. */
const ENGINE_FAILED = 3;
/**
 * Milliseconds between a failure of the engine and the end of the server. Meanwhile /health answers
 * 503.
 */
const LINGER_MS = 2000;
/** Milliseconds that a failed engine has to free its memory before the process ends. */
const RELEASE_MS = 10_000;

const SIGNALS = ['SIGTERM', 'SIGINT'] as const;

/**
 * Serves with one process, or with --tp ranks. Returns the exit code. Throws as serveInProcess()
 * does.
 */
export async function serveCommand(folder: string | undefined, flags: ServeFlags): Promise<number> {
  requireModels(folder, flags);
  if (folder === undefined) return serveInProcess(null, flags);
  return (flags.tp ?? 1) > 1 ? serveOverRanks(folder, flags) : serveInProcess(folder, flags);
}

/**
 * Throws DS_ARGUMENT unless the command line names one model, or several without options of one
 * model.
 */
function requireModels(folder: string | undefined, flags: ServeFlags): void {
  const { model, modelsDir, adapter, maxLoras, revision, modelMemory, modelIdle } = flags;
  if (model === undefined && modelsDir === undefined) {
    const several = '--model NAME=FOLDER';
    if (folder === undefined) refuse('serve', `a model, ${several} or --models-dir`, 'none');
    const memoryOption = modelMemory === undefined ? modelIdle : modelMemory;
    if (memoryOption === undefined) return;
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
  const conflicting = Object.entries(single).find(([, value]) => value !== undefined);
  if (conflicting)
    refuse(
      conflicting[0],
      `no such option with ${option}`,
      'both',
      'Serve this model alone: ds serve FOLDER.',
    );
}

/** Starts the ranks; rank 0 serves. Returns the exit code. */
async function serveOverRanks(folder: string, flags: ServeFlags): Promise<number> {
  const { tp, device } = flags;
  const { drainSeconds } = readLimits('serve limits', fromFlags(SERVER_LIMITS, flags));
  readKeys(flags.apiKeyFile); // Check the keys now: a rank would load the model first.
  if (device?.includes(':')) {
    const hint = 'Set CUDA_VISIBLE_DEVICES to choose GPUs.';
    refuse('--device', '"cuda" or "cpu" without a number, with --tp', `"${device}"`, hint);
  }
  const [{ launch }, { takeLaunchOptions }] = await Promise.all([
    import('./launch.js'),
    import('./launch-options.js'),
  ]);
  const { options } = takeLaunchOptions([], null);
  const devices = (await hasGpus(device)) ? { num_gpus: tp } : { num_procs: tp };
  const grace_period = drainSeconds + RANK_END_SECONDS;
  const name = require.resolve('./serve-rank.js');
  const program = { name, args: [folder, JSON.stringify(flags)], node: process.execArgv };
  const codes = new Set<number>();
  const onSignal = (_: string, number: number): unknown => codes.add(128 + number);
  for (const signal of SIGNALS) process.once(signal, onSignal);
  const code = await launch({ ...options, ...devices, grace_period, no_local_rank: true }, program);
  // A signal is the normal end of a server.
  return codes.has(code) ? 0 : code;
}

async function hasGpus(device: string | undefined): Promise<boolean> {
  if (device === 'cpu') return false;
  if (device !== undefined && device !== 'auto') return true;
  return (await import('../runtime/device.js')).probeGpus().deviceCount > 0;
}

/**
 * Serves until the first signal, then lets running requests end; a second signal ends the process
 * immediately. `folder` is null for several models. Returns the exit code. Throws as serve() and
 * initInference() do.
 */
export async function serveInProcess(folder: string | null, flags: ServeFlags): Promise<number> {
  const options = readEngineOptions(flags);
  const keyFile = openKeyFile(flags.apiKeyFile);
  const apiKeys = keyFile.keys;
  const serveOptions = fromFlags(SERVE, flags);
  const { host = SERVE.host.absent('') } = serveOptions;
  const { model = folder === null ? SERVE.model.absent('') : defaultModelName(folder) } =
    serveOptions;
  const chatTemplate = readTemplate(flags.chatTemplate);
  const stopped = waitForSignal();
  let engine: ReturnType<typeof openServed> | null = null;
  let code = 0;
  let timer: NodeJS.Timeout | undefined;
  const createOpener = (folder: string) => () => {
    engine = openServed(folder, options).then(async (item) => {
      await item.follow();
      return item;
    });
    return engine;
  };
  const limits = fromFlags({ ...REQUEST_LIMITS, ...SERVER_LIMITS }, flags);
  const settings = { ...serveOptions, host, model, apiKeys, chatTemplate, limits };
  const server = await (folder === null
    ? servePool(createPool(flags, options), settings)
    : serve(createOpener(folder), settings));
  const unwatch = keyFile.watch((keys) => server.setApiKeys(keys));
  if (folder !== null) console.log(`${model} at ${server.url}/v1: loading ${folder}`);
  if (serveOptions.ui) console.log(`chat at ${server.url}/`);
  if (apiKeys.length === 0 && !isLoopback(host)) {
    console.error(
      `ds: every client that reaches ${host} may send requests. To require a key, set ${KEY_VARIABLE} or --api-key-file.`,
    );
  }
  const npmNotice = npmContainerNotice('ds serve');
  if (npmNotice !== null) console.error(npmNotice);
  try {
    await Promise.race([server.ready, stopped]);
    if (server.served || server.pool) console.log(describeServer(server));
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
    unwatch();
    await server.stop();
    await (engine as ReturnType<typeof openServed> | null)?.then(
      (item) => item.destroy(),
      () => {},
    );
  }
  clearTimeout(timer);
  return code;
}

/** Returns the name of a model without --model-name. */
const defaultModelName = (folder: string): string =>
  isRemote(folder) ? folder : basename(resolve(folder));

/**
 * Delays the end so that health checks see the failure. Returns the timer that ends the process
 * with ENGINE_FAILED if the engine does not free its memory in time.
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

/**
 * Resolves with the first signal, or when npm has ended; later signals have their default effect.
 */
function waitForSignal(): Promise<string> {
  return new Promise((resolve) => {
    const onSignal = (signal: string): void => {
      for (const name of SIGNALS) process.off(name, onSignal);
      unwatch();
      resolve(signal);
    };
    const unwatch = onNpmEnd(() => onSignal('npm has ended'));
    for (const name of SIGNALS) process.on(name, onSignal);
  });
}

/** Opens the pool of --model and --models-dir. Throws DS_ARGUMENT for two models of one name. */
function createPool(
  { model = {}, modelsDir, ...flags }: ServeFlags,
  options: EngineOptions,
): ModelPool {
  const others = modelsDir === undefined ? {} : findModels(modelsDir);
  const duplicate = Object.keys(others).find((name) => Object.hasOwn(model, name));
  if (duplicate !== undefined)
    refuse('--models-dir', 'a name for each model', formatValue(duplicate));
  const { modelMemory: memory, modelIdle: idleSeconds } = fromFlags(SERVER, flags);
  const limitOptions = { memory, idleSeconds };
  const limits = Object.entries(limitOptions).filter(([, value]) => value !== undefined);
  return openPool({ ...model, ...others }, options, Object.fromEntries(limits));
}

function describeServer({ served, pool, url }: InferenceServer): string {
  if (pool) {
    const names = pool.models.map(({ name }) => name).join(', ');
    return `ready at ${url}/v1: ${names}, each loaded by its first request`;
  }
  if (!served) return '';
  const { maxTokens, tokenizer, canChat, engine } = served;
  const { maxSeq = maxTokens } = engine.module;
  const limit = engine.isCacheBound
    ? `, as many as the cache holds (the model: ${maxSeq})`
    : ` (--context: up to ${maxSeq})`;
  const longer = maxSeq > maxTokens ? limit : '';
  const missing = [
    ...(tokenizer ? [] : ['without a tokenizer: prompts are tokens']),
    ...(canChat || !tokenizer ? [] : ['without a chat template: completions only']),
  ];
  return [`ready: ${maxTokens} tokens of prompt and answer${longer}`, ...missing].join(', ');
}
