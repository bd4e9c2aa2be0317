// A hub with its cache for one test file, and small repositories.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { type HubSettings, readHubSettings } from '../../lib/hub/environment.js';
import { HubServer } from '../support/hub-server.js';

export const NAME = 'org/tiny';

/** Bytes without a pattern, the same for each seed. */
export function noise(bytes: number, seed = 1): Buffer {
  const out = Buffer.alloc(bytes);
  let state = seed >>> 0 || 1;
  for (let i = 0; i < bytes; ++i) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    out[i] = state >>> 24;
  }
  return out;
}

/** A repository with weights in one file. */
export const tiny = (weights = noise(100_000)): Record<string, Buffer | string> => ({
  'config.json': '{"model_type":"llama"}',
  'tokenizer.json': '{}',
  'tokenizer_config.json': '{}',
  'model.safetensors': weights,
  'README.md': 'A model.',
  'pytorch_model.bin': noise(20_000, 3),
});

export interface HubTest {
  readonly server: HubServer;
  /** An empty folder for each test. */
  readonly cache: string;
  /** Settings with short pauses; `change` overrides some. */
  settings(change?: Partial<HubSettings>): HubSettings;
}

/** Starts a hub before the tests of a file; each test gets an empty cache and no repositories. */
export function hubTest(): HubTest {
  let server: HubServer | null = null;
  let cache = '';
  beforeAll(async () => {
    server = await HubServer.start();
  });
  beforeEach(() => {
    cache = mkdtempSync(join(tmpdir(), 'hub-'));
    const localHubServer = server as HubServer;
    localHubServer.repositories.clear();
    localHubServer.received.length = 0;
    Object.assign(localHubServer, {
      fault: null,
      edit: null,
      page: 1000,
      sendsRanges: true,
      chunk: 0,
    });
  });
  afterEach(() => rmSync(cache, { recursive: true, force: true }));
  afterAll(() => server?.stop());
  return {
    get server() {
      return server as HubServer;
    },
    get cache() {
      return cache;
    },
    settings: (change = {}) => ({
      ...readHubSettings({ HF_HUB_CACHE: cache, HF_ENDPOINT: server?.url, HF_HOME: cache }),
      progress: false,
      backoffMs: 1,
      segmentBytes: 30_000,
      stallMs: 5000,
      ...change,
    }),
  };
}
