// `ds chat`: a conversation with a folder's model in the terminal.
import { chat, openEngine } from '../serve/index.js';
import { type EngineFlags, engineOptions, textOf } from './engine-flags.js';

/** The options of `ds chat`. */
export interface ChatFlags extends EngineFlags {
  system?: string;
  temperature?: number;
  topP?: number;
  topK?: number;
  maxTokens?: number;
}

/** Talks until the input ends. Returns the exit code. Throws as chat() and initInference() do. */
export async function chatCommand(folder: string, flags: ChatFlags): Promise<number> {
  const { system, temperature, topP, topK, seed, maxTokens: maxNewTokens } = flags;
  const said = Object.entries({ temperature, topP, topK, seed, maxNewTokens });
  const sampling = Object.fromEntries(said.filter(([, value]) => value !== undefined));
  const engine = await openEngine(folder, engineOptions(flags));
  try {
    await chat(engine, { system, sampling, chatTemplate: textOf(flags.chatTemplate) });
  } finally {
    await engine.destroy();
  }
  return 0;
}
