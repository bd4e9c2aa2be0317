// Creates a model pool from folders: estimates sizes, and measures memory after a load.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { totalmem } from 'node:os';
import { join } from 'node:path';
import { device as findDevice } from '../runtime/device.js';
import { ModelPool, type ModelSource, type PoolLimits } from './model-pool.js';
import { type EngineOptions, openServed } from './open-engine.js';

/** Default share of the GPU's memory, and of the host's. */
const [GPU_SHARE, HOST_SHARE] = [0.9, 0.5];
/** Share of the pool's memory for the KV cache of one model on a GPU. */
const CACHE_SHARE = 0.1;
const WEIGHTS = /\.(safetensors|gguf)$/;

/**
 * Creates a pool of models from folders or names on the hub. On a GPU, each model gets a cache of a
 * tenth of the memory, unless `options` sets one: the default would take all free memory.
 */
export function openPool(
  folders: Readonly<Record<string, string>>,
  options: EngineOptions,
  limits: PoolLimits = {},
): ModelPool {
  const device = findDevice(options.config?.device ?? 'auto');
  const isCpu = device.kind === 'cpu';
  const max = isCpu ? HOST_SHARE * totalmem() : GPU_SHARE * device.info.totalBytes;
  const { memory = Math.floor(max) } = limits;
  const cache = options.config?.kv_cache ?? {};
  const isBounded = isCpu || cache.memory !== undefined || cache.blocks !== undefined;
  const cacheConfig = isBounded ? cache : { ...cache, memory: Math.floor(CACHE_SHARE * memory) };
  const engine = { ...options, config: { ...options.config, kv_cache: cacheConfig } };
  const sources = Object.entries(folders).map(([name, folder]): [string, ModelSource] => [
    name,
    {
      bytes: weightBytes(folder) + (cacheConfig.memory ?? 0),
      async open() {
        const before = device.memory.inUse;
        const opened = await openServed(folder, engine);
        const close = async (): Promise<void> => {
          await opened.destroy();
          device.trim();
        };
        return { engine: opened, bytes: Math.max(0, device.memory.inUse - before), close };
      },
    },
  ]);
  return new ModelPool(Object.fromEntries(sources), { ...limits, memory });
}

/** Returns the bytes of the weight files; 0 for a name that is not downloaded. */
function weightBytes(source: string): number {
  if (!existsSync(source)) return 0;
  if (!statSync(source).isDirectory()) return statSync(source).size;
  const files = readdirSync(source).filter((name) => WEIGHTS.test(name));
  return files.reduce((sum, name) => sum + statSync(join(source, name)).size, 0);
}
