// Opens the models of a pool from folders: sizes before the load, and the memory after it.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { totalmem } from 'node:os';
import { join } from 'node:path';
import { device as findDevice } from '../runtime/device.js';
import { ModelPool, type ModelSource, type PoolLimits } from './model-pool.js';
import { type EngineOptions, openServed } from './open-engine.js';

/** Shares of memory without a bound: of the GPU, and of the host. */
const [GPU_SHARE, HOST_SHARE] = [0.9, 0.5];
/** Share of the pool's memory for the keys and values of one model on a GPU. */
const CACHE_SHARE = 0.1;
const WEIGHTS = /\.(safetensors|gguf)$/;

/**
 * A pool of the models of `folders`, or names on the hub. Each model gets a cache of a tenth of the
 * memory on a GPU unless `options` sets one, since the default takes all that is free.
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
  const ownConfig = isBounded ? cache : { ...cache, memory: Math.floor(CACHE_SHARE * memory) };
  const engine = { ...options, config: { ...options.config, kv_cache: ownConfig } };
  const sources = Object.entries(folders).map(([name, folder]): [string, ModelSource] => [
    name,
    {
      bytes: weightBytes(folder) + (ownConfig.memory ?? 0),
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

/** Bytes of the weight files of a folder or file; 0 for a name that is not downloaded. */
function weightBytes(place: string): number {
  if (!existsSync(place)) return 0;
  if (!statSync(place).isDirectory()) return statSync(place).size;
  const files = readdirSync(place).filter((name) => WEIGHTS.test(name));
  return files.reduce((sum, name) => sum + statSync(join(place, name)).size, 0);
}
