// `ds serve`: a folder's model behind HTTP, until a signal ends it.
import { readFileSync } from 'node:fs';
import { basename, resolve } from 'node:path';

import { type InferenceServer, openEngine, serve } from '../serve/index.js';
import { refuse } from './argument-error.js';
import { type EngineFlags, engineOptions, textOf } from './engine-flags.js';

/** The options of `ds serve`. */
export interface ServeFlags extends EngineFlags {
  host: string;
  port: number;
  apiKeyFile?: string;
  modelName?: string;
  tokenizerThreads: number;
  maxBody?: number;
  maxPromptTokens?: number;
  maxAnswers?: number;
  maxRequests?: number;
  requestTimeout?: number;
  drainTimeout?: number;
}

/** Of it, or of the file that --api-key-file names, a client shows a key. */
const KEY = 'DS_API_KEY';
const SIGNALS = ['SIGTERM', 'SIGINT'] as const;

/**
 * Serves until the first signal, then lets running requests end; a second one ends the process at
 * once. Returns the exit code. Throws as serve() and initInference() do.
 */
export async function serveCommand(folder: string, flags: ServeFlags): Promise<number> {
  const options = engineOptions(flags);
  const apiKeys = keysOf(flags.apiKeyFile);
  const { host, port, tokenizerThreads } = flags;
  const model = flags.modelName ?? basename(resolve(folder));
  const chatTemplate = textOf(flags.chatTemplate);
  const stopped = signalled();
  let engine: ReturnType<typeof openEngine> | null = null;
  const open = () => {
    engine = openEngine(folder, options);
    return engine;
  };
  const settings = { host, port, model, apiKeys, chatTemplate, tokenizerThreads };
  const server = await serve(open, { ...settings, limits: limitsOf(flags) });
  console.log(`${model} at ${server.url}/v1: loading ${folder}`);
  if (apiKeys.length === 0 && !isLoopback(host)) {
    console.error(`ds: everybody who reaches ${host} may ask: set ${KEY} or --api-key-file.`);
  }
  try {
    await Promise.race([server.ready, stopped]);
    if (server.served) console.log(introduction(server));
    const signal = await stopped;
    console.log(
      `${signal}: ${server.admission.inside} requests are under way; another ends at once`,
    );
  } finally {
    await server.stop();
    await (engine as ReturnType<typeof openEngine> | null)?.then(
      (one) => one.destroy(),
      () => {},
    );
  }
  return 0;
}

/** The first signal; after it they have their usual effect. */
function signalled(): Promise<string> {
  return new Promise((resolve) => {
    const onSignal = (signal: string): void => {
      for (const name of SIGNALS) process.off(name, onSignal);
      resolve(signal);
    };
    for (const name of SIGNALS) process.on(name, onSignal);
  });
}

function introduction({ served }: InferenceServer): string {
  if (!served) return '';
  const { maxTokens, tokenizer, canChat } = served;
  const without = [
    ...(tokenizer ? [] : ['without a tokenizer: prompts are tokens']),
    ...(canChat || !tokenizer ? [] : ['without a chat template: completions alone']),
  ];
  return [`ready: ${maxTokens} tokens of prompt and answer`, ...without].join(', ');
}

function limitsOf(flags: ServeFlags) {
  return {
    bodyBytes: flags.maxBody,
    promptTokens: flags.maxPromptTokens,
    answers: flags.maxAnswers,
    requests: flags.maxRequests,
    requestSeconds: flags.requestTimeout,
    drainSeconds: flags.drainTimeout,
  };
}

/** A key a line. Throws DS_ARGUMENT for a file that cannot be read or has none. */
function keysOf(file: string | undefined): string[] {
  const given = process.env[KEY]?.trim();
  const keys = given ? [given] : [];
  if (file === undefined) return keys;
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (cause) {
    refuse('--api-key-file', 'a readable file', (cause as Error).message);
  }
  const lines = text.split('\n').map((line) => line.trim());
  const own = lines.filter((line) => line !== '');
  if (own.length === 0) refuse('--api-key-file', 'a file with a key in a line', 'an empty one');
  return [...keys, ...own];
}

const isLoopback = (host: string): boolean =>
  host === 'localhost' || host === '::1' || host.startsWith('127.');
