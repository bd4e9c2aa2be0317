// The texts that transformers writes with the tiny models, taking the likeliest token each time.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

/** A prompt, and its continuation. */
export interface GreedyText {
  prompt: number[];
  tokens: number[];
}

const root = join(packageRoot(), 'test', 'golden', 'transformers', 'models');

/** The three texts of each family that has them. */
export function greedyTexts(): Record<string, GreedyText[]> {
  const found: Record<string, GreedyText[]> = {};
  for (const family of readdirSync(root)) {
    const path = join(root, family, 'golden.json');
    if (!existsSync(path)) continue;
    const { texts } = JSON.parse(readFileSync(path, 'utf8')) as { texts?: GreedyText[] };
    if (texts) found[family] = texts;
  }
  return found;
}
